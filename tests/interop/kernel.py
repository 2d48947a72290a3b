# SPDX-License-Identifier: MIT
"""Debian's kernel for the guest: fetched by apt into a folder, nothing of it installed.

The folder keeps the kernel as an ELF file, the few modules that the guest loads, and the initramfs
with them. It is made again when apt knows a newer kernel or when what goes into it changes.
"""

import hashlib
import lzma
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BUSYBOX = pathlib.Path("/bin/busybox")
# In the order in which they are loaded; what each needs comes before it. The CRC and the hash are
# asked for by name at run time, so that no module says that it depends on them.
MODULES = (
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "9p",
    "9pnet_virtio",
    "overlay",
    "crc32_generic",
    "crc32-pclmul",
    "crc32c_generic",
    "ib_uverbs",
    "rdma_rxe",
    "rdma_ucm",
    "sch_ingress",  # these three lose packets
    "cls_u32",
    "act_gact",
)
XZ = b"\xfd7zXZ\0"


class Unavailable(Exception):
    """There is no kernel; the text says why and what would help."""


class Kernel:
    """Paths of what a guest boots from."""

    def __init__(self, folder, version):
        self.version = version
        self.image = folder / "vmlinux"
        self.initramfs = folder / "initramfs.cpio"


def fetch(folder):
    """The Kernel in the folder, made where it is not there yet."""
    try:
        return made(pathlib.Path(folder))
    except Unavailable:
        # The package lists may be old, or there may be none.
        if os.geteuid() != 0:
            raise
        run(["apt-get", "-q", "update"])
        return made(pathlib.Path(folder))


def made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    package, version = candidate()
    result = folder / digest("\0".join([package, version, recipe()]).encode())[:16]
    if not result.is_dir():
        for old in folder.iterdir():
            shutil.rmtree(old)
        work = pathlib.Path(tempfile.mkdtemp(dir=folder))
        make(work, package, version)
        work.rename(result)
    return Kernel(result, version)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def recipe():
    parts = [__file__, HERE / "guest_init.sh", HERE / "guest_agent.py", BUSYBOX]
    return "".join(digest(pathlib.Path(part).read_bytes()) for part in parts)


def candidate():
    """Name and version of the package with Debian's current kernel for this machine."""
    name = "linux-image-" + run(["dpkg", "--print-architecture"]).strip()
    found = depends(name)
    if not found:
        raise Unavailable(f"apt knows no {name}: run apt-get update as root")
    shown = run(["apt-cache", "show", "--no-all-versions", found])
    return found, re.search(r"^Version: (\S+)", shown, re.MULTILINE).group(1)


def depends(name):
    listed = subprocess.run(
        ["apt-cache", "depends", name], capture_output=True, text=True, check=False
    ).stdout
    match = re.search(r"Depends: (linux-image-\d\S*)", listed)
    return match and match.group(1)


def run(words, **options):
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    except FileNotFoundError as missing:
        raise Unavailable(f"{missing.filename} is not installed: this needs Debian") from missing
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def make(folder, package, version):
    # apt downloads as a user of its own where it may write.
    folder.chmod(0o755)
    run(["apt-get", "-q", "-o", "Acquire::Retries=3", "download", f"{package}={version}"],
        cwd=folder)
    (archive,) = folder.glob("*.deb")
    tree = folder / "tree"
    run(["dpkg-deb", "-x", archive, tree])
    (packed,) = (tree / "boot").glob("vmlinuz-*")
    (folder / "vmlinux").write_bytes(unpacked(packed.read_bytes()))
    initramfs(folder / "initramfs.cpio", tree / "lib/modules")
    shutil.rmtree(tree)
    archive.unlink()


def unpacked(image):
    """The ELF file inside: it boots as it is (PVH), and the emulated processor need not unpack."""
    at = image.find(XZ)
    while at >= 0:
        try:
            elf = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[at:])
        except lzma.LZMAError:
            elf = b""
        if elf.startswith(b"\x7fELF"):
            return elf
        at = image.find(XZ, at + 1)
    raise Unavailable("the kernel image holds no ELF file packed by xz")


class Modules:
    """The modules of a kernel, and what each needs."""

    def __init__(self, folder):
        self.files = {}
        for path in pathlib.Path(folder).rglob("*.ko*"):
            self.files[self.plain(path.name.split(".ko")[0])] = path

    @staticmethod
    def plain(name):
        return name.replace("-", "_")

    def content(self, name):
        path = self.files.get(self.plain(name))
        if path is None:
            raise Unavailable(f"the kernel has no module {name}")
        data = path.read_bytes()
        return lzma.decompress(data) if path.suffix == ".xz" else data

    def in_order(self, wanted):
        """Name and content of the wanted modules, each after those that it needs."""
        done = {}

        def take(name):
            if self.plain(name) in done:
                return
            content = self.content(name)
            for needed in re.search(rb"\0depends=([^\0]*)\0", content).group(1).split(b","):
                if needed:
                    take(needed.decode())
            done[self.plain(name)] = content

        for name in wanted:
            take(name)
        return done


def initramfs(path, modules):
    """A cpio archive (newc), not packed: what unpacks it is emulated."""
    ordered = Modules(modules).in_order(MODULES)
    folder, program, data = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
    entries = [(name, folder, b"") for name in ("bin", "dev", "proc", "sys", "newroot", "modules")]
    entries += [
        ("bin/busybox", program, BUSYBOX.read_bytes()),
        ("init", program, (HERE / "guest_init.sh").read_bytes()),
        ("agent", data, (HERE / "guest_agent.py").read_bytes()),
        ("modules/order", data, "".join(f"{name}\n" for name in ordered).encode()),
    ]
    entries += [(f"modules/{name}", data, content) for name, content in ordered.items()]
    with open(path, "wb") as archive:
        for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
            encoded = name.encode() + b"\0"
            fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
            archive.write(b"070701" + b"".join(b"%08x" % field for field in fields))
            for part in (encoded, content):
                archive.write(part)
                archive.write(b"\0" * (-archive.tell() % 4))
