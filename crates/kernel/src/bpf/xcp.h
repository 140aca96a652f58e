/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The state that XCP's two halves in the kernel share: the options of a connection (xcp_options.bpf.c) and
 * its congestion control (xcp.bpf.c).
 */
#pragma once

#include "kernel.h"
#include "xcp_option.h"

/* The state of a connection. The holder of the socket's lock owns all but `unreported` and `total`. */
struct xcp_endpoint {
	/* The sender's: the header of its segments, and the sum of its requests, bytes per second. */
	u32 rtt_us;
	u32 spacing_ns;
	int request;
	u64 asked;
	/* The receiver's sum, and how often it has arrived. */
	u32 heard_total;
	u32 heard;
	/* The receiver's: the sum, and the segments whose feedback is in it and has not been sent back. */
	u32 total;
	u32 unreported;
	u8 offers;     /* SYNs with the offer that have been sent */
	u8 peer_takes; /* both ends have agreed */
	u8 asks;       /* the congestion control is XCP's, and has something to say */
	u8 receives;   /* there has been feedback */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct xcp_endpoint);
} xcp_endpoints SEC(".maps");
