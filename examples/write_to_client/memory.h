// SPDX-License-Identifier: MIT
// Memory to send from and to receive into.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace write_to_client {

// A mapping that goes with its owner; of one byte at least, so that it can be registered.
class Memory {
 public:
  // Fresh memory, every page of it there already: page faults are no part of a transfer.
  static Memory fresh(std::size_t size);
  // The content of a file. The NIC will read straight from the page cache.
  static Memory of_file(const std::string& path);

  Memory(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory& operator=(Memory&&) = delete;
  ~Memory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t mapped() const { return size_ ? size_ : 1; }

 private:
  Memory(std::byte* data, std::size_t size) : data_(data), size_(size) {}

  std::byte* data_;
  std::size_t size_;
};

// Fills memory with data that looks like noise and is the same every time.
void make_up_data(Memory& memory);

}  // namespace write_to_client
