/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * TCP Hybla, complete, as an eBPF congestion control.
 *
 * Caini and Firrincieli, "TCP Hybla: a TCP enhancement for heterogeneous networks", Int. J. Satell. Commun. Network 22
 * (2004): a connection of long round-trip time RTT gets the rate that one of RTT0 = 25 ms would have had.
 *
 *     rho = max(RTT / RTT0, 1)                  the normalised round-trip time
 *     slow start:            W += 2^rho - 1     for each acknowledged segment
 *     congestion avoidance:  W += rho^2 / W     for each acknowledged segment
 *     initial window:        rho times the standard one
 *     initial ssthresh:      capacity * RTT, the capacity from the spacing of the first ACKs (Hoe, SIGCOMM 1996)
 *     pacing:                a segment every RTT / W
 *
 * rho follows the minimum RTT: the smoothed one holds queues, and is not known when the connection begins.
 *
 * Two things are added to the published algorithm, both consequences of its aim:
 *
 * - At GEO W grows by rho^2 = 576 segments in each round trip and learns of an overflow one round trip late, so that
 *   without losses it drops half a window at the end of every climb. Hoe's estimate is therefore kept up to date by the
 *   delivery rate and bounds the pacing rate; when a queue comes to stand, W goes back to what the link carries; and
 *   while it stands, W grows no faster than a standard TCP's.
 * - Recovery from a loss takes a round trip. The connection of 25 ms that Hybla wants to equal grows again after 25 ms;
 *   one that waits for 600 ms, at a loss in every hundred segments, hardly ever grows. So W goes on growing in recovery,
 *   from half of what it was.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The reference round-trip time RTT0, microseconds. */
const volatile u32 rtt0_us = 25000;
/* The standard initial window, segments (RFC 6928). Linux sends as many without pacing. */
const volatile u32 standard_window = 10;

/* Fixed point: 16 fractional bits for rho and window growth, 8 for rates in segments per second. */
#define ONE (1ULL << 16)
#define RATE_SHIFT 8
#define USEC_PER_SEC 1000000ULL

/* Above this exponent a single ACK opens any window there is; it also keeps 2^rho * acked within 64 bits. */
#define RHO_MAX (30ULL << 16)
/* An upper bound for W that no arithmetic below can overflow. */
#define WINDOW_MAX (1U << 30)
/* A round trip longer than the minimum by this many sixteenths has a queue in it. */
#define STANDING_QUEUE 2

enum { TRAIN_WAITING = 0, TRAIN_RUNNING, TRAIN_DONE };

struct hybla {
	u64 growth;          /* 2^rho - 1, fixed point */
	u64 credit;          /* growth earned and not yet a whole segment, fixed point */
	u64 train_first_us;  /* when the first ACK of the first burst came */
	u64 train_last_us;   /* and the last one so far */
	u32 train_base;      /* `delivered` when the connection began */
	u32 train_first;     /* `delivered` after the first ACK of the burst */
	u32 train_last;      /* and after the last one so far */
	u32 rho;             /* fixed point */
	u32 min_rtt_us;      /* the minimum RTT that rho stands for */
	u32 rtt_us;          /* smoothed RTT, without what an outage adds to it */
	u32 initial_window;  /* segments */
	u32 delivered;       /* `delivered` at the last ACK */
	u32 lost;            /* `lost` at the last ACK */
	u32 round_end;       /* `delivered` at which the current round ends */
	u32 round_rate;      /* highest delivery rate of this round, fixed-point segments per second */
	u32 capacity;        /* what the link is known to carry, in the same unit; 0 is unknown */
	u32 prr_delivered;   /* segments delivered in this recovery (RFC 6937) */
	u32 target;          /* where this recovery leads the window */
	u8 state;            /* TCP_CA_* */
	u8 train;            /* TRAIN_* */
	u8 hoe_applied;
	u8 queued;           /* a queue stands, and the window has been cut to what the link carries */
	u8 undone; /* the reduction under way has been taken back */
};

_Static_assert(sizeof(struct hybla) <= 104, "the kernel keeps 104 bytes for a congestion control");

static inline u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

/* 2^(i-th binary fraction) with 30 fractional bits: 2^(1/2), 2^(1/4), … 2^(1/65536). */
static const u32 two_to_fraction[16] = {
	1518500250, 1276901417, 1170923762, 1121280436, 1097253708, 1085434106, 1079572136, 1076653033,
	1075196443, 1074468888, 1074105294, 1073923544, 1073832680, 1073787251, 1073764537, 1073753181,
};

/* 2^rho, both fixed point with 16 fractional bits; rho up to RHO_MAX. */
static u64 two_to(u64 rho)
{
	u64 result = 1ULL << 30;

	for (int i = 0; i < 16; i++) {
		if (rho & (1ULL << (15 - i)))
			result = (result * two_to_fraction[i]) >> 30;
	}
	return (result << (rho >> 16)) >> 14;
}

static void follow_min_rtt(struct tcp_sock *tp, struct hybla *h)
{
	u32 min_rtt_us = tp->rtt_min.s[0].v;

	if (min_rtt_us == h->min_rtt_us || min_rtt_us == ~0U || min_rtt_us == 0)
		return;
	h->min_rtt_us = min_rtt_us;
	u64 rho = ((u64)min_rtt_us << 16) / rtt0_us;
	rho = min_u64(max_u64(rho, ONE), RHO_MAX * 8);
	h->rho = rho;
	h->growth = two_to(min_u64(rho, RHO_MAX)) - ONE;
}

/* The round-trip time now, with the queue in it. */
static u32 round_trip_us(const struct tcp_sock *tp, const struct hybla *h)
{
	return max_u64(h->rtt_us ? h->rtt_us : tp->srtt_us >> 3, 1);
}

/* How much longer than the minimum the round trip now is, in sixteenths of the minimum. */
static u32 queue_sixteenths(const struct tcp_sock *tp, const struct hybla *h)
{
	u32 rtt_us = round_trip_us(tp, h);

	if (!h->min_rtt_us || rtt_us <= h->min_rtt_us)
		return 0;
	/* A few milliseconds are scheduling noise, not a queue, whatever the round-trip time. */
	if (rtt_us - h->min_rtt_us < 4000)
		return 0;
	return ((u64)(rtt_us - h->min_rtt_us) * 16) / h->min_rtt_us;
}

/*
 * A delivery rate is a lower bound of the link's capacity. With a queue in front of the link it is the capacity itself:
 * then what was known before no longer counts.
 */
static void follow_capacity(struct tcp_sock *tp, struct hybla *h)
{
	u32 interval_us = tp->rate_interval_us;

	if (interval_us) {
		u64 rate = ((u64)tp->rate_delivered * (USEC_PER_SEC << RATE_SHIFT)) / interval_us;
		h->round_rate = max_u64(h->round_rate, min_u64(rate, ~0U));
		h->capacity = max_u64(h->capacity, h->round_rate);
	}
	if ((int)(tp->delivered - h->round_end) >= 0) {
		h->round_end = tp->delivered + packets_in_flight(tp);
		if (h->hoe_applied && h->round_rate && queue_sixteenths(tp, h) >= STANDING_QUEUE)
			h->capacity = h->round_rate;
		h->round_rate = 0;
	}
}

/* Segments per second that the pacing may reach on account of the link's capacity. */
static u64 capacity_bound(const struct tcp_sock *tp, const struct hybla *h)
{
	u64 known = h->capacity;

	if (!h->hoe_applied) {
		/* No estimate yet: the rate at most doubles from one round to the next, as in any slow start. */
		u64 initial = (((u64)h->initial_window * USEC_PER_SEC) << RATE_SHIFT) / max_u64(h->min_rtt_us, 1);
		return max_u64(2 * known, initial);
	}
	/* Not below it where a queue stands: others may keep it standing, and would get what we leave. */
	return queue_sixteenths(tp, h) ? known : known + known / 8;
}

static inline bool is_reducing(const struct hybla *h)
{
	return h->state == TCP_CA_Recovery || h->state == TCP_CA_CWR;
}

/*
 * A segment every RTT / W, no faster than the link and the socket's own ceiling (SO_MAX_PACING_RATE, which the kernel leaves
 * to whoever sets the pace). Returns whether one of these, not the window, set the pace.
 */
static bool pace(struct sock *sk, struct tcp_sock *tp, struct hybla *h)
{
	u64 rtt_us = round_trip_us(tp, h);
	/* In recovery the kernel's window follows what is on its way; W is where the recovery leads. */
	u64 window = is_reducing(h) ? max_u64(tp->snd_cwnd, h->target) : tp->snd_cwnd;
	u64 rate = ((window * USEC_PER_SEC) << RATE_SHIFT) / rtt_us;
	u64 bound = capacity_bound(tp, h);
	bool bounded = false;

	/* W doubles within a round of slow start: segments of the second half must not wait for the first. */
	if (window < tp->snd_ssthresh / 2)
		rate *= 2;
	/*
	 * Where the round trip varies for other reasons than a queue, a queue seems to stand, what one round has delivered
	 * bounds the next, and so on down to nothing: two segments in each round trip stay.
	 */
	if (bound && h->min_rtt_us)
		bound = max_u64(bound, ((2ULL * USEC_PER_SEC) << RATE_SHIFT) / h->min_rtt_us);
	if (bound && rate > bound) {
		rate = bound;
		bounded = true;
	}
	u64 bytes = (rate * tp->mss_cache) >> RATE_SHIFT;
	if (bytes > sk->sk_max_pacing_rate) {
		bytes = sk->sk_max_pacing_rate;
		bounded = true;
	}
	sk->sk_pacing_rate = max_u64(bytes, 1);
	return bounded;
}

/* Hoe: the ACKs of the first burst are spaced as the bottleneck spaced its segments. */
static void follow_train(struct tcp_sock *tp, struct hybla *h)
{
	u32 burst_end = h->train_base + standard_window;

	if (h->train == TRAIN_WAITING) {
		/* A burst that was still growing when its first ACK came tells about the application, not the link. */
		if (tp->data_segs_out < standard_window) {
			h->train = TRAIN_DONE;
			return;
		}
		h->train_first = h->train_last = tp->delivered;
		h->train_first_us = h->train_last_us = tp->tcp_mstamp;
		h->train = TRAIN_RUNNING;
	} else if (h->train == TRAIN_RUNNING && (int)(tp->delivered - burst_end) <= 0) {
		h->train_last = tp->delivered;
		h->train_last_us = tp->tcp_mstamp;
	}
	if (h->train == TRAIN_RUNNING && (int)(tp->delivered - burst_end) >= 0)
		h->train = TRAIN_DONE;
}

/* Once, at the start: ssthresh = capacity * RTT, and a window that has already run past it comes back to it. */
static void apply_hoe(struct tcp_sock *tp, struct hybla *h, u64 rate)
{
	u64 window = ((rate * h->min_rtt_us) / USEC_PER_SEC) >> RATE_SHIFT;

	h->hoe_applied = 1;
	h->capacity = max_u64(h->capacity, min_u64(rate, ~0U));
	if (tp->snd_ssthresh < TCP_INFINITE_SSTHRESH)
		return;
	tp->snd_ssthresh = min_u64(max_u64(window, 2), WINDOW_MAX);
	if (tp->snd_cwnd > tp->snd_ssthresh)
		tp->snd_cwnd = tp->snd_ssthresh;
}

static void estimate_capacity(struct tcp_sock *tp, struct hybla *h)
{
	if (h->hoe_applied)
		return;
	follow_train(tp, h);
	if (h->train != TRAIN_DONE)
		return;
	u64 spread_us = h->train_last_us - h->train_first_us;
	u32 segments = h->train_last - h->train_first;
	if (segments >= 3 && spread_us > 0)
		apply_hoe(tp, h, (segments * (USEC_PER_SEC << RATE_SHIFT)) / spread_us);
	else if (queue_sixteenths(tp, h) >= STANDING_QUEUE)
		/* No usable burst at the start; the queue says that the delivery rate is now the link's. */
		apply_hoe(tp, h, h->capacity);
}

static void set_window(struct tcp_sock *tp, u64 window)
{
	window = min_u64(window, WINDOW_MAX);
	tp->snd_cwnd = max_u64(min_u64(window, tp->snd_cwnd_clamp), 1);
}

/* W += 2^rho - 1 for each acknowledged segment, up to ssthresh. */
static void slow_start(struct tcp_sock *tp, struct hybla *h, u32 acked)
{
	u64 earned = h->credit + h->growth * acked;
	u64 window = tp->snd_cwnd + (earned >> 16);

	h->credit = earned & (ONE - 1);
	if (window >= tp->snd_ssthresh) {
		window = tp->snd_ssthresh;
		h->credit = 0;
	}
	set_window(tp, window);
}

/* W += rho^2 / W for each acknowledged segment; rho = 1 while a queue stands. Returns the new W. */
static u32 congestion_avoidance(const struct tcp_sock *tp, struct hybla *h, u32 window, u32 acked)
{
	u64 rho = queue_sixteenths(tp, h) >= STANDING_QUEUE ? ONE : h->rho;
	u64 whole = max_u64(window, 1) << 16;

	h->credit += ((rho * rho) >> 16) * acked;
	u64 segments = h->credit / whole;
	h->credit -= segments * whole;
	return min_u64(window + segments, WINDOW_MAX);
}

/* Proportional rate reduction (RFC 6937): from the old window to the target over one round trip. */
static void reduce(struct tcp_sock *tp, struct hybla *h, u32 acked, u32 newly_lost)
{
	u32 in_flight = packets_in_flight(tp);
	u32 target = h->target;
	u64 may_send;

	h->prr_delivered += acked;
	if (in_flight > target) {
		u64 before = max_u64(tp->prior_cwnd, 1);
		u64 due = ((u64)target * h->prr_delivered + before - 1) / before;
		may_send = due > tp->prr_out ? due - tp->prr_out : 0;
	} else {
		u64 delivered_more = h->prr_delivered > tp->prr_out ? h->prr_delivered - tp->prr_out : 0;
		may_send = max_u64(delivered_more, acked);
		if (!newly_lost)
			may_send++;
		may_send = min_u64(may_send, target - in_flight);
	}
	/* The retransmission that begins the recovery goes out at once. */
	if (!tp->prr_out)
		may_send = max_u64(may_send, 1);
	set_window(tp, in_flight + may_send);
}

/*
 * When a queue comes to stand, the window goes back to what the link carries and an eighth; once, for where others keep
 * the queue standing, going back again and again would leave them everything.
 */
static void leave_queue(struct tcp_sock *tp, struct hybla *h)
{
	u32 queue = queue_sixteenths(tp, h);

	if (queue == 0)
		h->queued = 0;
	if (queue < STANDING_QUEUE || h->queued || !h->hoe_applied || !h->round_rate)
		return;
	h->queued = 1;
	u64 carried = (((u64)h->round_rate * h->min_rtt_us) / USEC_PER_SEC) >> RATE_SHIFT;
	u64 window = max_u64(carried + carried / 8, 2);
	if (window < tp->snd_cwnd)
		set_window(tp, window);
}

SEC("struct_ops")
void BPF_PROG(hybla_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct hybla *h = tcp_private(sk);

	__builtin_memset(h, 0, sizeof(*h));
	h->rho = ONE;
	h->growth = ONE;
	h->delivered = tp->delivered;
	h->lost = tp->lost;
	h->train_base = tp->delivered;
	follow_min_rtt(tp, h);
	h->initial_window = ((u64)h->rho * standard_window) >> 16;
	/* A connection that took Hybla later, or whose SYN was lost, keeps the window that it has. */
	if (tp->data_segs_out == 0 && tp->snd_cwnd >= standard_window)
		set_window(tp, h->initial_window);
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	if (tp->srtt_us)
		pace(sk, tp, h);
}

SEC("struct_ops")
void BPF_PROG(hybla_cong_control, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct hybla *h = tcp_private(sk);
	u32 acked = tp->delivered - h->delivered;
	u32 newly_lost = tp->lost - h->lost;

	h->delivered = tp->delivered;
	h->lost = tp->lost;
	follow_min_rtt(tp, h);
	follow_capacity(tp, h);
	bool bounded = pace(sk, tp, h);
	/* A window that is not what holds the sender back says nothing about the next one (RFC 7661). */
	bool grows = acked && !tp->app_limited && (!bounded || BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited));

	if (is_reducing(h)) {
		if (grows)
			h->target = congestion_avoidance(tp, h, h->target, acked);
		reduce(tp, h, acked, newly_lost);
	} else if (tp->snd_cwnd < tp->snd_ssthresh) {
		if (acked && !tp->app_limited)
			slow_start(tp, h, acked);
	} else if (grows) {
		set_window(tp, congestion_avoidance(tp, h, tp->snd_cwnd, acked));
		leave_queue(tp, h);
	}
	if (acked)
		estimate_capacity(tp, h);
	pace(sk, tp, h);
}

/*
 * The kernel's smoothed RTT takes samples by timestamps, and after an outage these have the outage in them: of one of
 * 50 s seven seconds would stay, the queue would seem enormous and the pacing would crawl. A sample counts here as twice
 * the minimum at the most.
 */
SEC("struct_ops")
void BPF_PROG(hybla_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct hybla *h = tcp_private(sk);
	int rtt_us = sample->rtt_us;

	if (rtt_us <= 0 || !h->min_rtt_us)
		return;
	u64 bounded = min_u64(rtt_us, 2ULL * h->min_rtt_us);
	/* The gain of an eighth is RFC 6298's. */
	h->rtt_us = h->rtt_us ? h->rtt_us - h->rtt_us / 8 + bounded / 8 : bounded;
}

SEC("struct_ops")
void BPF_PROG(hybla_set_state, struct sock *sk, u8 new_state)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct hybla *h = tcp_private(sk);
	bool reducing = is_reducing(h);

	if (new_state == TCP_CA_Recovery || new_state == TCP_CA_CWR) {
		if (!reducing) {
			h->prr_delivered = 0;
			h->undone = 0;
			h->target = tp->snd_ssthresh;
		}
	} else if (reducing && new_state <= TCP_CA_Disorder && !h->undone) {
		set_window(tp, max_u64(h->target, 2));
	}
	h->credit = 0;
	h->state = new_state;
}

/* Half the window, as any TCP of its time (RFC 5681, equation 4). */
SEC("struct_ops")
u32 BPF_PROG(hybla_ssthresh, struct sock *sk)
{
	return max_u64(tcp_sk(sk)->snd_cwnd / 2, 2);
}

/* A loss that was none: the window comes back (RFC 4015). */
SEC("struct_ops")
u32 BPF_PROG(hybla_undo_cwnd, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct hybla *h = tcp_private(sk);

	h->undone = 1;
	return max_u64(tp->snd_cwnd, tp->prior_cwnd);
}

/* A window on its way, another that waits behind a hole for its retransmission, and one to send meanwhile. */
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
