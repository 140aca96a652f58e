/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * What the arithmetic of all three congestion controls and of the AQM shares. The `*_core.h` files beside
 * this one are plain C: integers only, no kernel type, no map, no helper, no loop without a bound. Each of
 * them is compiled twice:
 *
 * - for the kernel, by `crates/kernel/build.rs`: the eBPF program fills in a struct from the socket, calls
 *   the core, and writes the results back;
 * - for this host, by `crates/tcp/build.rs`: virtual time runs the same code.
 *
 * `crates/kernel/tests/root` runs both builds on the same generated events and compares every bit.
 *
 * The structs have no padding, so that they can be compared as bytes; `crates/tcp/build.rs` declares them and
 * the enumerations in Rust.
 */
#pragma once

#include <stdbool.h>

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define USEC_PER_SEC 1000000ULL

/* Linux keeps so many bytes in a socket for the state of its congestion control (ICSK_CA_PRIV_SIZE). */
#define CORE_STATE_BYTES 104

/* Linux's threshold of a connection that has none yet. */
#define TCP_INFINITE_SSTHRESH 0x7fffffff

/* Linux's enum tcp_ca_state: what the loss recovery of a connection is doing. */
enum {
	TCP_CA_Open = 0,
	TCP_CA_Disorder = 1,
	TCP_CA_CWR = 2,
	TCP_CA_Recovery = 3,
	TCP_CA_Loss = 4,
};

/* What happens to a connection of Hybla or XCP. */
enum {
	CORE_INIT,      /* it begins, or takes this congestion control */
	CORE_ACK,       /* an ACK has been processed, whether it acknowledged anything new or not */
	CORE_RTT,       /* `argument` is a sample of the round-trip time, us; before the CORE_ACK of the same ACK */
	CORE_SET_STATE, /* the loss recovery changes to `argument`, one of TCP_CA_* */
	CORE_SSTHRESH,  /* a loss: `ssthresh` is set */
	CORE_UNDO,      /* a loss that was none: `cwnd` is set */
};

static inline u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

/*
 * The smoothed round-trip time after another sample, microseconds; 0 is none. The gain of an eighth is that
 * of RFC 6298.
 *
 * After an outage, samples by timestamps contain the outage: of one of 50 s, seven seconds would remain, the
 * queue would seem enormous and the pacing would crawl. So a sample counts as twice the minimum at most.
 */
static inline u32 smoothed_rtt_us(u32 smoothed_us, u32 sample_us, u32 min_rtt_us)
{
	u64 bounded = min_u64(sample_us, 2ULL * min_rtt_us);

	return smoothed_us ? smoothed_us - smoothed_us / 8 + bounded / 8 : bounded;
}
