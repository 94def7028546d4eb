#pragma once
/// libibverbs (rdma-core), opened at run time: a machine without it uses shared memory and the
/// kernel.
///
/// Calls of the data path (ibv_post_send, ibv_post_srq_recv, ibv_poll_cq, ibv_req_notify_cq) are
/// inline in <infiniband/verbs.h> and go through the context; everything else goes through this
/// table, so that no symbol of libibverbs is needed to load the library.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

// The header turns these names into wrappers that would need symbols of the library.
#undef ibv_query_port
#undef ibv_reg_mr

namespace sidestep::engine::verbs {

#define SIDESTEP_VERBS_FUNCTIONS(X) \
  X(ibv_fork_init)                  \
  X(ibv_get_device_list)            \
  X(ibv_free_device_list)           \
  X(ibv_get_device_name)            \
  X(ibv_open_device)                \
  X(ibv_close_device)               \
  X(ibv_query_device)               \
  X(ibv_query_pkey)                 \
  X(_ibv_query_gid_table)           \
  X(ibv_alloc_pd)                   \
  X(ibv_dealloc_pd)                 \
  X(ibv_reg_mr)                     \
  X(ibv_dereg_mr)                   \
  X(ibv_create_comp_channel)        \
  X(ibv_destroy_comp_channel)       \
  X(ibv_create_cq)                  \
  X(ibv_destroy_cq)                 \
  X(ibv_get_cq_event)               \
  X(ibv_ack_cq_events)              \
  X(ibv_create_srq)                 \
  X(ibv_modify_srq)                 \
  X(ibv_destroy_srq)                \
  X(ibv_create_qp)                  \
  X(ibv_modify_qp)                  \
  X(ibv_destroy_qp)                 \
  X(ibv_get_async_event)            \
  X(ibv_ack_async_event)            \
  X(ibv_event_type_str)             \
  X(ibv_wc_status_str)

struct Library {
#define SIDESTEP_DECLARE(name) decltype(&::name) name;
  SIDESTEP_VERBS_FUNCTIONS(SIDESTEP_DECLARE)
#undef SIDESTEP_DECLARE

  /// Returns the library, which the first call opens; null if it is missing or too old (logged
  /// once, and `why` says so). It is never closed. Thread-safe.
  static const Library* get(const char** why = nullptr) noexcept;
  /// Called in the child: a thread of the parent may have been in get().
  static void forget_after_fork() noexcept;

  /// Does what ibv_query_port(3) does; the header's version needs a symbol of the library.
  static int query_port(ibv_context* context, uint8_t port, ibv_port_attr& attributes) noexcept;
};

}  // namespace sidestep::engine::verbs
