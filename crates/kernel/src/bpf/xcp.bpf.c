/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The sender of XCP (Katabi, Handley and Rohrs 2002, §3.3) and of P-XCP (Zhou, Yeung and Li 2004) as an eBPF congestion
 * control.
 *
 *     W += feedback * RTT     for the feedback that the receiver has returned, bytes per second
 *     loss                    XCP: half the window, as any TCP; P-XCP: it is sent again, and the window stays
 *     timeout                 one segment, as any TCP
 *     pacing:                 a segment every RTT / W
 *
 * A socket whose peer does not take XCP, whose options stop coming through, or in front of whose bottleneck there is no router
 * of XCP, takes another congestion control.
 */
#include "xcp.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* What the link carries, bytes per second on the wire; 0 is unknown. */
const volatile u64 capacity = 0;
/* P-XCP: a loss is not congestion. */
const volatile u8 ignores_loss = 0;
/* The congestion control of who has no XCP at the other end. */
const volatile char fallback[TCP_CA_NAME_MAX] = "cubic";

#define USEC_PER_SEC 1000000ULL
#define WINDOW_MAX (1U << 26)
#define WINDOW_MIN 2U
/* On one host or one cable the least of all round trips is a stroke of luck, and what a window is cannot be told from it. */
#define RTT_FLOOR_US 1000
#define NOISE_US 4000
/* The header of IP, bytes. */
#define IPV4_HEADER 20
#define IPV6_HEADER 40
/*
 * The other end has gone silent: 4 rounds without a word and as many segments. Where segments are missing, SACK blocks
 * may have taken the place of the sum, and it takes four times as many.
 */
#define SILENT_SEGMENTS 64
#define SILENCE 16
#define SILENT_ROUND 4
/* So many rounds with a queue, and there is no router of XCP in front of the bottleneck. */
#define QUEUED_ROUNDS 2

struct xcp {
	u64 asked;     /* of xcp_endpoint, when last looked at */
	u64 allowance; /* bytes per second that have been asked for lately and not been granted */
	u64 recent;    /* asked for in the last few rounds, those long ago counting less */
	u64 round;     /* asked for in this one */
	long long credit; /* part of a segment by which the window is to change, 16 fractional bits */
	u32 heard;     /* of xcp_endpoint, when last looked at */
	u32 total;     /* the receiver's sum then */
	u32 heard_delivered; /* `delivered` then */
	u32 round_end; /* `delivered` at which this round ends */
	u32 window;    /* W, segments */
	u32 rtt_us;    /* smoothed RTT, without what an outage adds to it */
	u32 silence;
	u32 round_heard; /* `heard` when this round began */
	u8 queued_rounds; /* rounds in a row in which a queue has stood that no router of XCP would have let come */
	u8 draining;   /* W has been reduced, and more than it is on its way */
};

_Static_assert(sizeof(struct xcp) <= 104, "the kernel keeps 104 bytes for a congestion control");

static inline u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

/* The round-trip time without queues; 0 is not known yet. */
static u32 min_rtt_us(const struct tcp_sock *tp)
{
	u32 rtt_us = tp->rtt_min.s[0].v;

	if (rtt_us == ~0U || !rtt_us)
		return 0;
	return max_u64(rtt_us, RTT_FLOOR_US);
}

/* The round-trip time now; 0 is not known yet. */
static u32 round_trip_us(const struct tcp_sock *tp, const struct xcp *h)
{
	u32 rtt_us = h->rtt_us ? h->rtt_us : tp->srtt_us >> 3;

	return rtt_us ? max_u64(rtt_us, RTT_FLOOR_US) : 0;
}

/* What a full segment takes of the link, bytes. */
static u32 wire_size(const struct sock *sk, const struct tcp_sock *tp)
{
	u32 ip = sk->__sk_common.skc_family == AF_INET6 ? IPV6_HEADER : IPV4_HEADER;

	return tp->mss_cache + tp->tcp_header_len + ip;
}

/* No more than two bandwidth-delay products, where the bandwidth is known: whatever the options say. */
static u64 window_limit(const struct sock *sk, const struct tcp_sock *tp)
{
	u64 limit = WINDOW_MAX;

	if (capacity && min_rtt_us(tp))
		limit = 2 * capacity * min_rtt_us(tp) / USEC_PER_SEC / wire_size(sk, tp);
	return max_u64(min_u64(limit, WINDOW_MAX), 10);
}

static void set_window(const struct sock *sk, struct tcp_sock *tp, struct xcp *h, u64 window)
{
	window = min_u64(min_u64(window, window_limit(sk, tp)), tp->snd_cwnd_clamp);
	h->window = max_u64(window, WINDOW_MIN);
	tp->snd_cwnd = h->window;
}

/*
 * Behind a reduction nothing new is sent until what is on its way fits into W. Retransmissions do not wait for that, or the
 * timer would expire before they are acknowledged: each acknowledgement lets one go.
 */
static void drain(struct tcp_sock *tp, struct xcp *h)
{
	u32 in_flight = packets_in_flight(tp);

	if (!h->draining || in_flight <= h->window) {
		h->draining = 0;
		tp->snd_cwnd = h->window;
		return;
	}
	tp->snd_cwnd = in_flight + (tp->lost_out > tp->retrans_out);
}

static void pace(struct sock *sk, struct tcp_sock *tp, const struct xcp *h)
{
	u64 rtt_us = max_u64(round_trip_us(tp, h), 1);
	u64 rate = (u64)h->window * tp->mss_cache * USEC_PER_SEC / rtt_us;

	/* A sixteenth more, so that the window, not the pace, is what holds the sender back. */
	rate = min_u64(rate + rate / 16, sk->sk_max_pacing_rate);
	sk->sk_pacing_rate = max_u64(rate, 1);
}

/* The application or the receiver holds the sender back: more of the link would be of no use to it. */
static bool is_limited_elsewhere(const struct tcp_sock *tp)
{
	/* Who has not begun is not known to be slow. */
	bool by_application = tp->app_limited && tp->data_segs_out && packets_in_flight(tp) < tp->snd_cwnd;

	return by_application || tp->snd_wnd < (u64)tp->snd_cwnd * tp->mss_cache;
}

/* By how much the round trip is longer than without queues, us; a few milliseconds are scheduling noise. */
static u64 queue_us(const struct tcp_sock *tp, const struct xcp *h)
{
	u64 least_us = min_rtt_us(tp) + NOISE_US, now_us = round_trip_us(tp, h);

	return now_us > least_us ? now_us - least_us : 0;
}

/* A queue that no router of XCP sees: the path has another bottleneck, or one that is slower than it is said to be. */
static bool has_strange_queue(const struct tcp_sock *tp, const struct xcp *h)
{
	return queue_us(tp, h) > min_rtt_us(tp) / 2;
}

/* By how much the rate is to change within a round trip, bytes per second, as far as the sender is concerned. */
static long long wanted_change(const struct tcp_sock *tp, const struct xcp *h, u64 rate)
{
	if (has_strange_queue(tp, h))
		return -(long long)(rate / 8);
	if (is_limited_elsewhere(tp))
		return 0;
	if (!capacity)
		return queue_us(tp, h) > min_rtt_us(tp) / 4 ? 0 : rate;
	/* A little more than there is: who asks for nothing is taken for one that wants nothing. */
	return (long long)(capacity + capacity / 16) - (long long)rate;
}

static void set_request(struct sock *sk, struct tcp_sock *tp, struct xcp *h, struct xcp_endpoint *x)
{
	u64 window = max_u64(h->window, 1);
	u64 rtt_us = round_trip_us(tp, h);
	u64 rate = window * wire_size(sk, tp) * USEC_PER_SEC / max_u64(min_rtt_us(tp), 1);

	x->rtt_us = rtt_us;
	x->spacing_ns = min_u64(rtt_us * 1000 / window, ~0U);
	if (!rtt_us || !min_rtt_us(tp)) {
		x->request = 0;
		return;
	}
	long long change = wanted_change(tp, h, rate);
	u64 size = min_u64(change < 0 ? -change : change, 1ULL << 40) / window;
	size = min_u64(size, 0x7fffffff);
	x->request = change < 0 ? -(int)size : (int)size;
}

/* Changes the window by feedback * RTT. */
static void apply(const struct sock *sk, struct tcp_sock *tp, struct xcp *h, int feedback)
{
	u64 size = feedback < 0 ? -(long long)feedback : feedback;
	/* In 65,536ths of a segment; the RTT is below 2^32 us and the feedback below 2^31. */
	u64 change = size * round_trip_us(tp, h) / wire_size(sk, tp) * 65536 / USEC_PER_SEC;

	h->credit += feedback < 0 ? -(long long)change : (long long)change;
	long long segments = h->credit >> 16;
	h->credit -= segments << 16;
	if (segments < 0)
		set_window(sk, tp, h, h->window > -segments ? h->window + segments : 0);
	else if (segments > 0)
		set_window(sk, tp, h, h->window + segments);
}

/* What the receiver's sum has changed by; no more than has been asked for. */
static void take_feedback(const struct sock *sk, struct tcp_sock *tp, struct xcp *h, const struct xcp_endpoint *x)
{
	if (x->heard == h->heard)
		return;
	int feedback = x->heard_total - h->total;

	h->heard = x->heard;
	h->total = x->heard_total;
	h->heard_delivered = tp->delivered;
	h->silence = 0;
	if (feedback > 0) {
		feedback = min_u64(feedback, h->allowance);
		h->allowance -= feedback;
	}
	apply(sk, tp, h, feedback);
}

static void follow_rounds(const struct tcp_sock *tp, struct xcp *h, const struct xcp_endpoint *x)
{
	u64 asked = x->asked - h->asked;

	h->asked = x->asked;
	h->round += asked;
	h->allowance += asked;
	if ((int)(tp->delivered - h->round_end) < 0)
		return;
	h->round_end = tp->delivered + packets_in_flight(tp);
	h->recent += h->round - h->recent / 4;
	h->allowance = min_u64(h->allowance, h->recent);
	h->round = 0;
	h->queued_rounds = has_strange_queue(tp, h) ? min_u64(h->queued_rounds + 1, QUEUED_ROUNDS) : 0;
	if (h->round_heard == x->heard)
		h->silence += tp->sacked_out ? 1 : SILENT_ROUND;
	h->round_heard = x->heard;
}

static bool is_silent(const struct tcp_sock *tp, const struct xcp *h)
{
	return h->silence >= SILENCE && tp->delivered - h->heard_delivered >= SILENT_SEGMENTS;
}

/* Without a capacity and without a router nothing holds the sender back: it would ask for twice as much for ever. */
static bool is_ungoverned(const struct xcp *h)
{
	return !capacity && h->queued_rounds >= QUEUED_ROUNDS;
}

/* Nothing of this control's may be touched behind this: its place is another's. */
static void fall_back(struct sock *sk)
{
	char name[TCP_CA_NAME_MAX];

	/* One by one, or the compiler takes the name above for the one that is meant. */
	for (int i = 0; i < TCP_CA_NAME_MAX; i++)
		name[i] = fallback[i];
	if (bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name))) {
		/* Whoever provided it has taken it back; this one is always there. */
		char reno[] = "reno";
		bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno));
	}
}

SEC("struct_ops")
void BPF_PROG(xcp_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct xcp *h = tcp_private(sk);
	struct xcp_endpoint *x = bpf_sk_storage_get(&xcp_endpoints, sk, 0, 0);

	if (!x || !x->peer_takes) {
		fall_back(sk);
		return;
	}
	__builtin_memset(h, 0, sizeof(*h));
	h->asked = x->asked;
	h->heard = h->round_heard = x->heard;
	h->total = x->heard_total;
	h->heard_delivered = tp->delivered;
	h->round_end = tp->delivered + 1;
	h->window = tp->snd_cwnd;
	x->asks = 1;
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	if (tp->srtt_us)
		pace(sk, tp, h);
	set_request(sk, tp, h, x);
}

SEC("struct_ops")
void BPF_PROG(xcp_cong_control, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct xcp *h = tcp_private(sk);
	struct xcp_endpoint *x = bpf_sk_storage_get(&xcp_endpoints, sk, 0, 0);

	if (!x)
		return;
	/* The kernel has changed it: a timeout, or one that was none. */
	if (!h->draining)
		h->window = tp->snd_cwnd;
	follow_rounds(tp, h, x);
	take_feedback(sk, tp, h, x);
	if (is_silent(tp, h) || is_ungoverned(h)) {
		x->asks = 0;
		fall_back(sk);
		return;
	}
	drain(tp, h);
	pace(sk, tp, h);
	set_request(sk, tp, h, x);
}

/*
 * The kernel's smoothed RTT takes samples by timestamps, and after an outage these have the outage in them. A sample counts
 * here as twice the minimum at the most.
 */
SEC("struct_ops")
void BPF_PROG(xcp_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct xcp *h = tcp_private(sk);
	u32 least_us = min_rtt_us(tcp_sk(sk));
	int rtt_us = sample->rtt_us;

	if (rtt_us <= 0 || !least_us)
		return;
	u64 bounded = min_u64(rtt_us, 2ULL * least_us);
	/* The gain of an eighth is RFC 6298's. */
	h->rtt_us = h->rtt_us ? h->rtt_us - h->rtt_us / 8 + bounded / 8 : bounded;
}

SEC("struct_ops")
void BPF_PROG(xcp_set_state, struct sock *sk, u8 new_state)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct xcp *h = tcp_private(sk);

	/* Congestion that a router or this host's queue has reported (CWR) is no loss, and counts for P-XCP too. */
	if (new_state == TCP_CA_CWR || (new_state == TCP_CA_Recovery && !ignores_loss)) {
		h->window = tp->snd_ssthresh;
		h->draining = 1;
	} else if (h->draining && new_state != TCP_CA_Recovery) {
		/* A timeout has a window of its own. */
		if (new_state != TCP_CA_Loss)
			tp->snd_cwnd = h->window;
		h->draining = 0;
	}
}

/* Half the window, as any TCP of its time (RFC 5681, equation 4); the window itself is changed above. */
SEC("struct_ops")
u32 BPF_PROG(xcp_ssthresh, struct sock *sk)
{
	return max_u64(tcp_sk(sk)->snd_cwnd / 2, WINDOW_MIN);
}

/* A loss that was none: the window comes back (RFC 4015). */
SEC("struct_ops")
u32 BPF_PROG(xcp_undo_cwnd, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct xcp *h = tcp_private(sk);

	h->draining = 0;
	return max_u64(tp->snd_cwnd, tp->prior_cwnd);
}

/* A window on its way, another that waits behind a hole for its retransmission, and one to send meanwhile. */
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
