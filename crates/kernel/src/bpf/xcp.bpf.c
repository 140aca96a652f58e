/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The sender of XCP and of P-XCP as an eBPF congestion control. xcp_core.h has the algorithm and its sources;
 * this file fills in the socket as the core sees it, and writes back what the core has set.
 *
 * A socket takes another congestion control if its peer does not speak XCP, if its options stop coming
 * through, or if there is no router of XCP in front of the bottleneck.
 */
#include "xcp.h"
#include "xcp_core.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The capacity of the link, bytes per second on the wire; 0 is unknown. */
const volatile u64 capacity = 0;
/* P-XCP: a loss is not congestion. */
const volatile u8 ignores_loss = 0;
/* The congestion control of a socket without XCP at the other end. */
const volatile char fallback[TCP_CA_NAME_MAX] = "cubic";

static inline void read_socket(struct xcp_socket *s, const struct sock *sk,
			       const struct xcp_endpoint *endpoint)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	__builtin_memset(s, 0, sizeof(*s));
	s->capacity = capacity;
	s->max_pacing_rate = sk->sk_max_pacing_rate;
	s->pacing_rate = sk->sk_pacing_rate;
	s->asked = endpoint->asked;
	s->heard_total = endpoint->heard_total;
	s->heard = endpoint->heard;
	s->cwnd = tp->snd_cwnd;
	s->cwnd_clamp = tp->snd_cwnd_clamp;
	s->ssthresh = tp->snd_ssthresh;
	s->prior_cwnd = tp->prior_cwnd;
	s->in_flight = packets_in_flight(tp);
	s->data_segs_out = tp->data_segs_out;
	s->delivered = tp->delivered;
	s->mss = tp->mss_cache;
	s->header = header_length(sk);
	s->snd_wnd = tp->snd_wnd;
	s->srtt_us = tp->srtt_us >> 3;
	s->min_rtt_us = min_rtt_us(tp);
	s->app_limited = tp->app_limited;
	s->holes = tp->sacked_out != 0;
	s->to_retransmit = tp->lost_out > tp->retrans_out;
	s->ignores_loss = ignores_loss;
}

static inline void write_socket(struct sock *sk, struct xcp_endpoint *endpoint, const struct xcp_socket *s)
{
	tcp_sk(sk)->snd_cwnd = s->cwnd;
	sk->sk_pacing_rate = s->pacing_rate;
	endpoint->rtt_us = s->request_rtt_us;
	endpoint->spacing_ns = s->spacing_ns;
	endpoint->request = s->request;
}

/* Nothing of this congestion control may be touched after this: its space belongs to another one. */
static void fall_back(struct sock *sk)
{
	char name[TCP_CA_NAME_MAX];

	/* One by one, or the compiler uses the name above instead of the one set at load time. */
	for (int i = 0; i < TCP_CA_NAME_MAX; i++)
		name[i] = fallback[i];
	if (bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name))) {
		/* Its provider has removed it; this one is always there. */
		char reno[] = "reno";
		bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno));
	}
}

SEC("struct_ops")
void BPF_PROG(xcp_init, struct sock *sk)
{
	struct xcp_endpoint *endpoint = bpf_sk_storage_get(&xcp_endpoints, sk, 0, 0);
	struct xcp_socket s;

	if (!endpoint || !endpoint->peer_takes) {
		fall_back(sk);
		return;
	}
	read_socket(&s, sk, endpoint);
	xcp_on_init(tcp_private(sk), &s);
	endpoint->asks = 1;
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	write_socket(sk, endpoint, &s);
}

SEC("struct_ops")
void BPF_PROG(xcp_cong_control, struct sock *sk)
{
	struct xcp_endpoint *endpoint = bpf_sk_storage_get(&xcp_endpoints, sk, 0, 0);
	struct xcp_socket s;

	if (!endpoint)
		return;
	read_socket(&s, sk, endpoint);
	xcp_on_ack(tcp_private(sk), &s);
	if (s.fall_back) {
		tcp_sk(sk)->snd_cwnd = s.cwnd;
		endpoint->asks = 0;
		fall_back(sk);
		return;
	}
	write_socket(sk, endpoint, &s);
}

SEC("struct_ops")
void BPF_PROG(xcp_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	xcp_on_rtt(tcp_private(sk), sample->rtt_us > 0 ? sample->rtt_us : 0, min_rtt_us(tcp_sk(sk)));
}

SEC("struct_ops")
void BPF_PROG(xcp_set_state, struct sock *sk, u8 new_state)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct xcp_socket s = { .cwnd = tp->snd_cwnd, .ssthresh = tp->snd_ssthresh, .ignores_loss = ignores_loss };

	xcp_on_set_state(tcp_private(sk), &s, new_state);
	tp->snd_cwnd = s.cwnd;
}

SEC("struct_ops")
u32 BPF_PROG(xcp_ssthresh, struct sock *sk)
{
	return xcp_ssthresh_after_loss(tcp_sk(sk)->snd_cwnd);
}

SEC("struct_ops")
u32 BPF_PROG(xcp_undo_cwnd, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);

	return xcp_on_undo(tcp_private(sk), tp->snd_cwnd, tp->prior_cwnd);
}

/* A window in flight, another that waits behind a hole for its retransmission, and one to send meanwhile. */
SEC("struct_ops")
u32 BPF_PROG(xcp_sndbuf_expand, struct sock *sk)
{
	return 3;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops bp_xcp = {
	.init = (void *)xcp_init,
	.cong_control = (void *)xcp_cong_control,
	.pkts_acked = (void *)xcp_pkts_acked,
	.set_state = (void *)xcp_set_state,
	.ssthresh = (void *)xcp_ssthresh,
	.undo_cwnd = (void *)xcp_undo_cwnd,
	.sndbuf_expand = (void *)xcp_sndbuf_expand,
	.name = "bp_xcp",
};
