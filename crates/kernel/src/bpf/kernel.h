/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The few kernel types and fields that bentpipe's eBPF programs touch. Field offsets are relocated at load time against
 * the running kernel's BTF (CO-RE), so order and neighbours do not matter here; names and types do.
 */
#pragma once

#include <stdbool.h>

/* What libbpf's headers expect of linux/types.h, which clang's bpf target does not find on every distribution. */
typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common {
	unsigned short skc_family;
};

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate; /* bytes per second */
	unsigned long sk_max_pacing_rate;
	u32 sk_pacing_status;
};

struct inet_connection_sock {
	u64 icsk_ca_priv[13]; /* ours to use */
};

struct minmax_sample {
	u32 t;
	u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	unsigned short tcp_header_len; /* of a segment without SACK blocks */
	u64 bytes_sent;                /* payload, retransmissions included */
	u32 snd_cwnd;
	u32 snd_cwnd_clamp;
	u32 snd_ssthresh;
	u32 prior_cwnd;
	u32 prr_out;
	u32 packets_out;
	u32 sacked_out;
	u32 lost_out;
	u32 retrans_out;
	u32 data_segs_out;
	u32 delivered;
	u32 lost;
	u32 app_limited;
	u32 rate_delivered;
	u32 rate_interval_us;
	u32 mss_cache;
	u32 srtt_us; /* eighths of a microsecond */
	struct minmax rtt_min;
	u64 tcp_mstamp; /* microseconds */
	u8 is_cwnd_limited : 1;
};

struct ack_sample {
	int rtt_us; /* negative where there is none */
};

struct rate_sample {
	long rtt_us; /* negative where there is none; of segments sent once only */
};

enum tcp_ca_event {
	CA_EVENT_TX_START, /* data is sent, and none was on its way */
};

union tcp_cc_info;

struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *sk);
	void (*set_state)(struct sock *sk, u8 new_state);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	void (*cong_control)(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs);
	u32 (*undo_cwnd)(struct sock *sk);
	u32 (*sndbuf_expand)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	u32 flags;
	char name[16];
};

#pragma clang attribute pop

/* Kinds of maps and their flags (linux/bpf.h, which wants headers of the machine that clang's bpf target does not find). */
enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_CLONE = 1 << 9,
	BPF_F_MMAPABLE = 1 << 10,
};

/* enum tcp_ca_state: what the kernel's loss recovery is doing. */
enum {
	TCP_CA_Open = 0,
	TCP_CA_Disorder = 1,
	TCP_CA_CWR = 2,
	TCP_CA_Recovery = 3,
	TCP_CA_Loss = 4,
};

/* sk_pacing_status: TCP paces by its own timer unless the fq queueing discipline already does. */
enum {
	SK_PACING_NONE = 0,
	SK_PACING_NEEDED = 1,
	SK_PACING_FQ = 2,
};

#define AF_INET6 10

#define TCP_INFINITE_SSTHRESH 0x7fffffff

static inline struct tcp_sock *tcp_sk(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static inline void *tcp_private(const struct sock *sk)
{
	return (void *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

/* Segments on their way: sent, not acknowledged, not known to have arrived or to be lost (RFC 6675 "pipe"). */
static inline u32 packets_in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}
