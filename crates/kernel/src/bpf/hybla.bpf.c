/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * TCP Hybla, complete, as an eBPF congestion control. hybla_core.h has the algorithm, its sources and what
 * bentpipe adds; this file fills in the socket as the core sees it, and writes back what the core has set.
 */
#include "kernel.h"
#include "hybla_core.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The reference round-trip time RTT0, microseconds. */
const volatile u32 rtt0_us = 25000;
/* The standard initial window, segments (RFC 6928). Linux sends as many without pacing. */
const volatile u32 standard_window = 10;
/* The algorithm as published, for a laboratory: without the two additions. */
const volatile u32 published = 0;

static inline struct hybla_parameters parameters(void)
{
	return (struct hybla_parameters){
		.rtt0_us = rtt0_us,
		.standard_window = standard_window,
		.burst = standard_window,
		.parts = published ? HYBLA_PUBLISHED : HYBLA_ALL,
	};
}

static inline void read_socket(struct hybla_socket *s, const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	__builtin_memset(s, 0, sizeof(*s));
	s->now_us = tp->tcp_mstamp;
	s->max_pacing_rate = sk->sk_max_pacing_rate;
	s->pacing_rate = sk->sk_pacing_rate;
	s->cwnd = tp->snd_cwnd;
	s->cwnd_clamp = tp->snd_cwnd_clamp;
	s->ssthresh = tp->snd_ssthresh;
	s->prior_cwnd = tp->prior_cwnd;
	s->prr_out = tp->prr_out;
	s->in_flight = packets_in_flight(tp);
	s->data_segs_out = tp->data_segs_out;
	s->delivered = tp->delivered;
	s->lost = tp->lost;
	s->rate_delivered = tp->rate_delivered;
	s->rate_interval_us = tp->rate_interval_us;
	s->mss = tp->mss_cache;
	s->srtt_us = tp->srtt_us >> 3;
	s->min_rtt_us = min_rtt_us(tp);
	s->app_limited = tp->app_limited;
	s->cwnd_limited = BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited);
}

static inline void write_socket(struct sock *sk, const struct hybla_socket *s)
{
	struct tcp_sock *tp = tcp_sk(sk);

	tp->snd_cwnd = s->cwnd;
	tp->snd_ssthresh = s->ssthresh;
	sk->sk_pacing_rate = s->pacing_rate;
}

SEC("struct_ops")
void BPF_PROG(hybla_init, struct sock *sk)
{
	struct hybla_parameters p = parameters();
	struct hybla_socket s;

	read_socket(&s, sk);
	hybla_on_init(tcp_private(sk), &s, &p);
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	write_socket(sk, &s);
}

SEC("struct_ops")
void BPF_PROG(hybla_cong_control, struct sock *sk)
{
	struct hybla_parameters p = parameters();
	struct hybla_socket s;

	read_socket(&s, sk);
	hybla_on_ack(tcp_private(sk), &s, &p);
	write_socket(sk, &s);
}

SEC("struct_ops")
void BPF_PROG(hybla_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	hybla_on_rtt(tcp_private(sk), sample->rtt_us > 0 ? sample->rtt_us : 0);
}

SEC("struct_ops")
void BPF_PROG(hybla_set_state, struct sock *sk, u8 new_state)
{
	struct hybla_socket s;

	read_socket(&s, sk);
	hybla_on_set_state(tcp_private(sk), &s, new_state);
	write_socket(sk, &s);
}

SEC("struct_ops")
u32 BPF_PROG(hybla_ssthresh, struct sock *sk)
{
	return hybla_ssthresh_after_loss(tcp_sk(sk)->snd_cwnd);
}

SEC("struct_ops")
u32 BPF_PROG(hybla_undo_cwnd, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);

	return hybla_on_undo(tcp_private(sk), tp->snd_cwnd, tp->prior_cwnd);
}

/* A window in flight, another that waits behind a hole for its retransmission, and one to send meanwhile. */
SEC("struct_ops")
u32 BPF_PROG(hybla_sndbuf_expand, struct sock *sk)
{
	return 3;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops bp_hybla = {
	.init = (void *)hybla_init,
	.cong_control = (void *)hybla_cong_control,
	.pkts_acked = (void *)hybla_pkts_acked,
	.set_state = (void *)hybla_set_state,
	.ssthresh = (void *)hybla_ssthresh,
	.undo_cwnd = (void *)hybla_undo_cwnd,
	.sndbuf_expand = (void *)hybla_sndbuf_expand,
	.name = "bp_hybla",
};
