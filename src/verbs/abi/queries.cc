// SPDX-License-Identifier: MIT
// Queries that come down to another one: the device and port attributes of old (ibv_query_device,
// the exported ibv_query_port), the GID table in its four forms, the index of a P_Key.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/abi/context.h"
#include "verbs/abi/entry.h"

namespace {

// The port attributes as exported before IBVERBS_1.1 grew: they end with `flags`, at 48 bytes.
constexpr std::size_t kOldPortAttrSize = offsetof(ibv_port_attr, flags) + 1;
static_assert(kOldPortAttrSize == 48);

// The part of a GID entry that every caller knows; a later header may ask for more.
constexpr std::size_t kGidEntrySizeMin = sizeof(ibv_gid_entry);

// ibv_gid_type_sysfs, what ibv_query_gid_type answers: the words of gid_attrs/types in sysfs.
constexpr unsigned kSysfsIbOrRoceV1 = 0;
constexpr unsigned kSysfsRoceV2 = 1;

int device_attributes(ibv_context* context, ibv_device_attr_ex& attributes) {
  verbs_context* table = verbs_get_ctx_op(context, query_device_ex);
  if (!table) return EOPNOTSUPP;
  attributes = {};
  return table->query_device_ex(context, nullptr, &attributes, sizeof(attributes));
}

int port_attributes(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) {
  verbs_context* table = verbs_get_ctx_op(context, query_port);
  if (!table) return EOPNOTSUPP;
  attributes = {};
  return table->query_port(context, port, &attributes, sizeof(attributes));
}

// Collects the valid entries of all ports. Like the manual page: too little room is an error, not a
// shorter answer.
class GidTableWriter {
 public:
  GidTableWriter(void* entries, std::size_t max_entries, std::size_t entry_size)
      : next_(static_cast<std::byte*>(entries)), room_(max_entries), entry_size_(entry_size) {}

  int add(const ibv_gid_entry& entry) {
    if (count_ == room_) return EINVAL;
    verbena::verbs::copy_out(entry, next_, entry_size_);
    next_ += entry_size_;
    ++count_;
    return 0;
  }
  std::size_t count() const { return count_; }

 private:
  std::byte* next_;
  std::size_t room_;
  std::size_t entry_size_;
  std::size_t count_ = 0;
};

int add_port(ibv_context* context, std::uint8_t port, GidTableWriter& writer) {
  ibv_port_attr attributes;
  if (const int error = port_attributes(context, port, attributes)) return error;
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    ibv_gid_entry entry = {};
    const int error =
        verbena::verbs::gid_entry(context, port, static_cast<std::uint32_t>(index), &entry);
    if (error == ENODATA) continue;
    if (error) return error;
    if (const int full = writer.add(entry)) return full;
  }
  return 0;
}

}  // namespace

int ibv_query_device(ibv_context* context, ibv_device_attr* device_attr) {
  ibv_device_attr_ex attributes;
  if (const int error = device_attributes(context, attributes)) return error;
  *device_attr = attributes.orig_attr;
  return 0;
}

int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* port_attr) {
  ibv_port_attr attributes;
  if (const int error = port_attributes(context, port, attributes)) return error;
  verbena::verbs::copy_out(attributes, port_attr, kOldPortAttrSize);
  return 0;
}

int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_entry entry = {};
  const int error =
      verbena::verbs::gid_entry(context, port, static_cast<std::uint32_t>(index), &entry);
  if (error && error != ENODATA) {
    errno = error;
    return -1;
  }
  *gid = error ? ibv_gid{} : entry.gid;  // an empty entry reads as zeros
  return 0;
}

int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, unsigned* type) {
  ibv_gid_entry entry = {};
  const int error = verbena::verbs::gid_entry(context, port, index, &entry);
  if (error && error != ENODATA) {
    errno = error;
    return -1;
  }
  *type = !error && entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? kSysfsRoceV2 : kSysfsIbOrRoceV1;
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index,
                      ibv_gid_entry* entry, std::uint32_t flags, std::size_t entry_size) {
  if (flags != 0 || entry_size < kGidEntrySizeMin) return errno = EINVAL;
  ibv_gid_entry full = {};
  if (const int error = verbena::verbs::gid_entry(context, port, index, &full)) {
    return errno = error;
  }
  verbena::verbs::copy_out(full, entry, entry_size);
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries,
                             std::uint32_t flags, std::size_t entry_size) {
  if (flags != 0 || entry_size < kGidEntrySizeMin) return -EINVAL;
  ibv_device_attr_ex device;
  if (const int error = device_attributes(context, device)) return -error;

  GidTableWriter writer(entries, max_entries, entry_size);
  for (int port = 1; port <= device.orig_attr.phys_port_cnt; ++port) {
    if (const int error = add_port(context, static_cast<std::uint8_t>(port), writer)) {
      return -error;
    }
  }
  return static_cast<ssize_t>(writer.count());
}

int ibv_get_pkey_index(ibv_context* context, std::uint8_t port, __be16 pkey) {
  ibv_port_attr attributes;
  if (const int error = port_attributes(context, port, attributes)) {
    errno = error;
    return -1;
  }
  for (int index = 0; index < attributes.pkey_tbl_len; ++index) {
    __be16 entry = 0;
    if (ibv_query_pkey(context, port, index, &entry) == 0 && entry == pkey) return index;
  }
  errno = ENOENT;
  return -1;
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }
