// SPDX-License-Identifier: MIT
// One end of a reliable connection: the device and the objects of verbs that it takes.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <memory>

#include "write_to_client/roles.h"
#include "write_to_client/wire.h"

namespace write_to_client {

template <auto destroy>
struct With {
  void operator()(auto* object) const { destroy(object); }
};
using Context = std::unique_ptr<ibv_context, With<ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, With<ibv_dealloc_pd>>;
using Channel = std::unique_ptr<ibv_comp_channel, With<ibv_destroy_comp_channel>>;
using Completions = std::unique_ptr<ibv_cq, With<ibv_destroy_cq>>;
using QueuePair = std::unique_ptr<ibv_qp, With<ibv_destroy_qp>>;
using Region = std::unique_ptr<ibv_mr, With<ibv_dereg_mr>>;

class Endpoint {
 public:
  // `sends` and `receives` are how many may be under way at a time.
  Endpoint(const Options& options, unsigned sends, unsigned receives);

  Region register_memory(void* data, std::size_t size, int access) const;
  const Address& address() const { return address_; }
  const char* device() const { return ibv_get_device_name(context_->device); }
  // Connects to the queue pair at `peer`; from then on it may send to us.
  void connect(const Address& peer);

  ibv_qp* queue_pair() const { return queue_pair_.get(); }
  ibv_cq* completions() const { return completions_.get(); }
  ibv_comp_channel* channel() const { return channel_.get(); }

 private:
  void open(const Options& options);
  void choose_gid(int wanted);
  void make_ready_to_receive(const Address& peer);
  void make_ready_to_send();

  Context context_;
  Domain domain_;
  Channel channel_;
  Completions completions_;
  QueuePair queue_pair_;
  ibv_port_attr port_ = {};
  int gid_index_ = 0;
  Address address_;
};

}  // namespace write_to_client
