#!/bin/busybox sh
# SPDX-License-Identifier: MIT
# The first program of the guest: loads modules, makes the host's root filesystem the guest's (read
# only, with a scratch layer on top) and leaves everything else to the agent, in Python.
set -euo pipefail
b=/bin/busybox
trap '$b echo "interop: the start of the guest failed"; $b poweroff -f' EXIT

$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do
  $b insmod "/modules/$module"
done </modules/order

root=/newroot
$b mkdir /lower /scratch
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose hostroot /lower
$b mount -t tmpfs -o size=75%,mode=755 scratch /scratch
$b mkdir /scratch/upper /scratch/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work overlay $root
for folder in dev proc sys; do
  $b mkdir -p "$root/$folder"
  $b mount --move "/$folder" "$root/$folder"
done
$b mkdir -p $root/run $root/dev/shm
$b mount -t tmpfs -o mode=755 run $root/run
$b mount -t tmpfs shm $root/dev/shm
$b cp /agent $root/run/agent
exec $b switch_root $root /usr/bin/python3 -I -S /run/agent
