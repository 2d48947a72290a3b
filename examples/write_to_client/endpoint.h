// SPDX-License-Identifier: MIT
// One end of a reliable connection that rdma_cm sets up, and the lines of text that the two ends
// tell each other: the offer goes along with the answer to the request, all else as messages.
// Every wait has a limit or ends with the connection, so that the end of one process ends the
// other.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "write_to_client/roles.h"

namespace write_to_client {

template <auto destroy>
struct With {
  void operator()(auto* object) const { destroy(object); }
};
using Channel = std::unique_ptr<rdma_event_channel, With<rdma_destroy_event_channel>>;
using Id = std::unique_ptr<rdma_cm_id, With<rdma_destroy_id>>;
using Region = std::unique_ptr<ibv_mr, With<ibv_dereg_mr>>;

// What the server says first.
struct Offer {
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;
};

// What the client answers: where it wants the data.
struct Place {
  std::uint64_t memory = 0;
  std::uint32_t key = 0;
};

class Endpoint {
 public:
  // The server's: waits for a client. `on_listening` hears at which port.
  static Endpoint of_client(const Options& options, unsigned sends,
                            const std::function<void(unsigned)>& on_listening);
  void accept(const Offer& offer);
  // The client's.
  static Endpoint to_server(const Options& options);
  Offer connect();

  Endpoint(Endpoint&&) = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  Endpoint& operator=(Endpoint&&) = delete;
  ~Endpoint();

  Region register_memory(void* data, std::size_t size, int access) const;
  void send(const Place& place);
  void send_verdict(bool is_right);
  Place receive_place();
  bool receive_verdict();
  // The next receive, for which this sleeps; limits are in seconds, and 0 is none.
  ibv_wc receive(int limit, const char* what);

  const char* device() const { return ibv_get_device_name(id_->verbs->device); }
  ibv_qp* queue_pair() const { return id_->qp; }
  ibv_cq* send_completions() const { return id_->send_cq; }

 private:
  static constexpr std::size_t kMessageBytes = 128;
  static constexpr unsigned kReceives = 2;  // the place and the verdict
  struct Messages {
    char received[kReceives][kMessageBytes] = {};
    char sent[kMessageBytes] = {};
  };

  Endpoint(Channel channel, Id id) : channel_(std::move(channel)), id_(std::move(id)) {}
  void make_queue_pair(unsigned sends);
  void post_receive(unsigned number);
  void send_line(const std::string& line);
  std::string receive_line(const char* what);

  Channel channel_;
  Id id_;
  std::unique_ptr<Messages> messages_;
  Region region_;
};

}  // namespace write_to_client
