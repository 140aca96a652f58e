/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Runs the cores of the congestion controls and of the AQM on events that a test has generated. The kernel
 * does not run congestion controls for BPF_PROG_TEST_RUN; it does run this program, which includes the same
 * headers.
 */
#include "kernel.h"
#include "aqm_core.h"
#include "explicit_core.h"
#include "hybla_core.h"
#include "xcp_core.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Events of one run. */
#define EVENTS 1024

enum { HYBLA, EXPLICIT, XCP, AQM };

/* An event, in the form of the algorithm, and the state after it. */
struct event {
	u64 socket[16];
	u64 state[CORE_STATE_BYTES / 8];
};

struct batch {
	u32 algorithm;
	u32 length; /* events of this run */
	struct hybla_parameters parameters;
	u64 state[CORE_STATE_BYTES / 8];
	struct event events[EVENTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct batch);
} batches SEC(".maps");

static long step(u32 index, void *context)
{
	u32 zero = 0;
	struct batch *b = bpf_map_lookup_elem(&batches, &zero);

	if (!b || index >= EVENTS)
		return 1;
	struct event *e = &b->events[index];
	if (b->algorithm == HYBLA)
		hybla_step((struct hybla *)b->state, (struct hybla_socket *)e->socket, &b->parameters);
	else if (b->algorithm == EXPLICIT)
		explicit_step((struct explicit_path *)b->state, (struct explicit_socket *)e->socket);
	else if (b->algorithm == AQM)
		aqm_step((struct aqm *)b->state, (struct aqm_packet *)e->socket);
	else
		xcp_step((struct xcp *)b->state, (struct xcp_socket *)e->socket);
	__builtin_memcpy(e->state, b->state, sizeof(e->state));
	return 0;
}

/* Returns how many events have been run. */
SEC("syscall")
int parity(void *context)
{
	u32 zero = 0;
	struct batch *b = bpf_map_lookup_elem(&batches, &zero);

	return b ? bpf_loop(b->length, step, NULL, 0) : -1;
}
