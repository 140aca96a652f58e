/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The few kernel types and fields that bentpipe's eBPF programs touch, beside the interface of linux/bpf.h.
 * Field offsets are relocated at load time against the running kernel's BTF (CO-RE), so order and neighbours
 * do not matter here; names and types do.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#include "core.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* The common part of sockets and of connections without one yet. */
struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state; /* RFC 9293's, as Linux numbers them */
	struct sock *skc_listener; /* of a connection that has no socket yet */
};

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate; /* bytes per second */
	unsigned long sk_max_pacing_rate;
	u32 sk_pacing_status;
};

struct tcp_congestion_ops;

struct inet_connection_sock {
	const struct tcp_congestion_ops *icsk_ca_ops;
	u64 icsk_ca_priv[13]; /* ours to use */
};

/* A connection that has had its SYN, and has no socket yet. */
struct request_sock {
	struct sock_common __req_common;
	u8 num_retrans; /* repeated SYN-ACKs before the one that is being made */
};

struct minmax_sample {
	u32 t;
	u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_options_received {
	u32 rcv_tsval; /* the other side's timestamp, of the segment that is being taken; 0: none */
};

struct tcp_sock {
	struct tcp_options_received rx_opt;
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
	u32 snd_wnd; /* bytes */
	u32 snd_una;
	u32 snd_nxt;
	u32 write_seq; /* behind the last byte that the application has written */
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
	u32 (*min_tso_segs)(struct sock *sk);
	u32 (*undo_cwnd)(struct sock *sk);
	u32 (*sndbuf_expand)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	u32 flags;
	char name[16];
};

/* A packet; what struct __sk_buff is a view of. */
struct net {
	u64 net_cookie; /* as SO_NETNS_COOKIE has it */
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	possible_net_t nd_net;
};

struct sk_buff {
	struct net_device *dev;
	unsigned char *head;
	unsigned char *data;
	unsigned int end; /* from `head`: where struct skb_shared_info is */
	unsigned short transport_header; /* from `head` */
	unsigned short network_header;   /* the same */
};

struct skb_shared_info {
	unsigned short gso_segs; /* segments of the wire in it; 0 is one */
};

/* What struct bpf_sock_ops is a view of. */
struct bpf_sock_ops_kern {
	struct sock *sk;
	struct sk_buff *skb;
};

#pragma clang attribute pop

/* Of a program at tc's hook: on to the next one. Linux's headers have it since 6.6. */
#define TCX_NEXT -1

#define AF_INET6 10
#define SOL_TCP 6
#define TCP_CONGESTION 13
#define TCP_SAVE_SYN 27
#define TCP_CA_NAME_MAX 16
#define TCPHDR_SYN 0x02
#define TCPHDR_ACK 0x10

/* skc_state of a connection that has had a SYN, and whose SYN-ACK is not acknowledged. */
#define TCP_SYN_RECV 3

/* sk_pacing_status: TCP paces by its own timer unless the fq queueing discipline already does. */
enum {
	SK_PACING_NONE = 0,
	SK_PACING_NEEDED = 1,
	SK_PACING_FQ = 2,
};

/*
 * The kernel's own structure behind a program's context, for BPF_CORE_READ. The verifier does not know it by
 * that type, but lets programs with CAP_PERFMON read it. (Linux 6.2 has bpf_cast_to_kern_ctx, 6.1 does not.)
 */
static inline const struct sk_buff *kernel_packet(const struct __sk_buff *skb)
{
	return (const void *)skb;
}

static inline const struct bpf_sock_ops_kern *kernel_sock_ops(const struct bpf_sock_ops *skops)
{
	return (const void *)skops;
}

static inline struct tcp_sock *tcp_sk(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static inline void *tcp_private(const struct sock *sk)
{
	return (void *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

/* The minimum RTT, microseconds; 0 before there is one. */
static inline u32 min_rtt_us(const struct tcp_sock *tp)
{
	u32 rtt_us = tp->rtt_min.s[0].v;

	return rtt_us == ~0U ? 0 : rtt_us;
}

/* Bytes of IP and TCP in front of a payload. */
static inline u32 header_length(const struct sock *sk)
{
	return tcp_sk(sk)->tcp_header_len + (sk->__sk_common.skc_family == AF_INET6 ? 40 : 20);
}

/* Segments in flight: sent, not acknowledged, not known to have arrived or to be lost (RFC 6675's pipe). */
static inline u32 packets_in_flight(const struct tcp_sock *tp)
{
	return tp->packets_out - (tp->sacked_out + tp->lost_out) + tp->retrans_out;
}
