/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Runs the cores of the congestion controls on events that a test has generated. The kernel does not run congestion
 * controls for BPF_PROG_TEST_RUN; it does run this program, which includes the same headers.
 */
#include "kernel.h"
#include "explicit_core.h"
#include "hybla_core.h"
#include "xcp_core.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Events of one run. */
#define EVENTS 1024

enum { HYBLA, EXPLICIT, XCP };

/* The connection. */
struct connection {
	u32 algorithm;
	u32 events; /* that there are in this run */
	struct hybla_parameters parameters;
	u64 state[CORE_STATE_BYTES / 8];
};

/* An event, in the form of the algorithm, and the state after it. */
struct event {
	u64 socket[16];
	u64 state[CORE_STATE_BYTES / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct connection);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, EVENTS);
	__type(key, u32);
	__type(value, struct event);
} events SEC(".maps");

static long step(u32 index, void *context)
{
	u32 zero = 0;
	struct connection *c = bpf_map_lookup_elem(&connections, &zero);
	struct event *e = bpf_map_lookup_elem(&events, &index);

	if (!c || !e)
		return 1;
	if (c->algorithm == HYBLA)
		hybla_step((struct hybla *)c->state, (struct hybla_socket *)e->socket, &c->parameters);
	else if (c->algorithm == EXPLICIT)
		explicit_step((struct explicit_path *)c->state, (struct explicit_socket *)e->socket);
	else
		xcp_step((struct xcp *)c->state, (struct xcp_socket *)e->socket);
	__builtin_memcpy(e->state, c->state, sizeof(e->state));
	return 0;
}

SEC("syscall")
int parity(void *context)
{
	u32 zero = 0;
	struct connection *c = bpf_map_lookup_elem(&connections, &zero);

	if (!c)
		return -1;
	return bpf_loop(c->events, step, NULL, 0);
}
