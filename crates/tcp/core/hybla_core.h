/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The arithmetic of TCP Hybla as bentpipe runs it, in the kernel and in virtual time (docs/hybla.md).
 *
 * Caini and Firrincieli, "TCP Hybla: a TCP enhancement for heterogeneous networks", Int. J. Satell. Commun.
 * Network 22 (2004): a connection with a long round-trip time RTT gets the rate that one with RTT0 = 25 ms
 * would have had.
 *
 *     rho = max(RTT / RTT0, 1)                  the normalised round-trip time
 *     slow start:            W += 2^rho - 1     for each acknowledged segment
 *     congestion avoidance:  W += rho^2 / W     for each acknowledged segment
 *     initial window:        rho times the standard one
 *     initial ssthresh:      capacity * RTT, capacity from the spacing of the first ACKs (Hoe, SIGCOMM 1996)
 *     pacing:                a segment every RTT / W
 *
 * rho follows the minimum RTT: the smoothed RTT includes queues, and is not known when the connection begins.
 *
 * bentpipe adds two things to the published algorithm. Both follow from its aim:
 *
 * - At GEO, W grows by rho^2 = 576 segments in each round trip and learns of an overflow one round trip late,
 *   so that without losses it drops half a window at the end of every climb. The delivery rate therefore
 *   keeps Hoe's estimate up to date, and the estimate bounds the pacing rate; when a standing queue appears,
 *   W goes back to what the link carries; and while the queue stands, W grows no faster than that of a
 *   standard TCP.
 * - Recovery from a loss takes a round trip. The connection of 25 ms that Hybla wants to equal grows again
 *   after 25 ms; one that waits for 600 ms, with a loss in every hundred segments, hardly ever grows. So W
 *   goes on growing during recovery, from half of what it was.
 *
 * Each part can be switched off, for experiments in virtual time. The kernel runs all of them, or in a
 * laboratory those of the published algorithm.
 */
#pragma once

#include "core.h"

/* Fixed point: 16 fractional bits for rho and for window growth, 8 for rates in segments per second. */
#define HYBLA_ONE (1ULL << 16)
#define HYBLA_RATE_SHIFT 8
/*
 * 2^rho counts up to this rho: a single ACK then opens any window. It keeps 2^rho * HYBLA_ACKED_MAX within 64
 * bits.
 */
#define HYBLA_EXPONENT_MAX (30ULL << 16)
/* An upper bound of rho, that of an RTT of 6 s. */
#define HYBLA_RHO_MAX (240ULL << 16)
/* An upper bound of what one ACK acknowledges, segments: at 1500 bytes, 98 MB. */
#define HYBLA_ACKED_MAX (1U << 16)
/* An upper bound of W that no arithmetic below can overflow, segments. */
#define HYBLA_WINDOW_MAX (1U << 30)
/* An upper bound of the pacing, segments per second in fixed point: 2^36 segments. */
#define HYBLA_RATE_MAX (1ULL << 44)
/* A round trip that is longer than the minimum by this many sixteenths contains a standing queue. */
#define HYBLA_STANDING_QUEUE 2
/* A few milliseconds are scheduling noise, not a queue, whatever the round-trip time. */
#define HYBLA_NOISE_US 4000
/* The longest time for which a receiver delays an acknowledgement: Linux' TCP_DELACK_MAX. */
#define HYBLA_DELAYED_ACK_US 200000
/* Fewer segments than this after the first ACK of the first burst say too little about the capacity. */
#define HYBLA_TRAIN_SEGMENTS 3

/* The parts of the algorithm. */
enum {
	HYBLA_RHO = 1 << 0,             /* growth and initial window follow rho; off: rho is 1 */
	HYBLA_PACING = 1 << 1,          /* a segment every RTT / W; off: the caller does not pace */
	HYBLA_HOE = 1 << 2,             /* the initial ssthresh is Hoe's */
	HYBLA_RECOVERY_GROWTH = 1 << 3, /* W grows during recovery */
	HYBLA_QUEUE = 1 << 4,           /* the capacity bounds the pacing, a standing queue bounds W */
	HYBLA_ALL = (1 << 5) - 1,
	/* the algorithm as published, without what bentpipe adds */
	HYBLA_PUBLISHED = HYBLA_RHO | HYBLA_PACING | HYBLA_HOE,
};

enum {
	HYBLA_TRAIN_WAITING,
	HYBLA_TRAIN_RUNNING,
	HYBLA_TRAIN_DONE,
};

/* What a connection is configured with. */
struct hybla_parameters {
	u32 rtt0_us;         /* the reference round-trip time RTT0 */
	u32 standard_window; /* the standard initial window, segments (RFC 6928) */
	u32 burst;           /* segments that leave at the start without pacing */
	u32 parts;           /* HYBLA_RHO and so on */
};

/* The state of a connection. */
struct hybla {
	u64 growth;          /* 2^rho - 1, fixed point */
	u64 credit;          /* growth earned that does not make a whole segment yet, fixed point */
	u64 train_first_us;  /* when the first ACK of the first burst arrived */
	u64 train_last_us;   /* when its last ACK so far arrived */
	u32 train_base;      /* `delivered` when the connection began */
	u32 train_first;     /* `delivered` after the first ACK of the burst */
	u32 train_last;      /* `delivered` after its last ACK so far */
	u32 rho;             /* fixed point */
	u32 min_rtt_us;      /* the minimum RTT that rho stands for */
	u32 rtt_us;          /* the smoothed RTT, with samples bounded as in smoothed_rtt_us() */
	u32 initial_window;  /* segments */
	u32 delivered;       /* `delivered` at the last ACK */
	u32 lost;            /* `lost` at the last ACK */
	u32 round_end;       /* `delivered` at which the current round ends */
	u32 round_rate;      /* the highest delivery rate of this round, fixed-point segments per second */
	u32 capacity;        /* the link's known capacity, in the same unit; 0 is unknown */
	u32 prr_delivered;   /* segments delivered in this recovery (RFC 6937) */
	u32 target;          /* the window at the end of this recovery, segments */
	u8 state;            /* TCP_CA_* */
	u8 train;            /* HYBLA_TRAIN_* */
	u8 hoe_applied;
	u8 queued;           /* a queue stands, and the window has been reduced to what the link carries */
	u8 undone;           /* the reduction in progress has been undone */
	u8 reserved[11];
};

_Static_assert(sizeof(struct hybla) == CORE_STATE_BYTES, "it fills the space for a congestion control");

/*
 * The socket as the algorithm sees it, with the names of Linux. It sets `pacing_rate`, `cwnd` and `ssthresh`.
 */
struct hybla_socket {
	u64 now_us;
	u64 max_pacing_rate; /* bytes per second */
	u64 pacing_rate;     /* bytes per second */
	u32 event;           /* CORE_INIT and so on */
	u32 argument;
	u32 cwnd;            /* segments, as all windows and counters here */
	u32 cwnd_clamp;
	u32 ssthresh;
	u32 prior_cwnd;      /* when this recovery began */
	u32 prr_out;         /* sent in this recovery */
	u32 in_flight;       /* sent, not delivered, not known to be lost: RFC 6675's pipe */
	u32 data_segs_out;   /* sent since the connection began */
	u32 delivered;       /* since the connection began */
	u32 lost;            /* since the connection began */
	u32 rate_delivered;  /* the last sample of the delivery rate: segments, and the time that they took */
	u32 rate_interval_us;
	u32 mss;             /* payload bytes of a segment */
	u32 srtt_us;         /* the smoothed RTT, 0 is none */
	u32 min_rtt_us;      /* the minimum RTT, 0 is none */
	u32 app_limited;     /* the application, not the network, held the sender back */
	u32 cwnd_limited;    /* the window held it back */
};

/* 2^(i-th binary fraction) with 30 fractional bits: 2^(1/2), 2^(1/4), … 2^(1/65536). */
static const u32 hybla_two_to_fraction[16] = {
	1518500250, 1276901417, 1170923762, 1121280436, 1097253708, 1085434106, 1079572136, 1076653033,
	1075196443, 1074468888, 1074105294, 1073923544, 1073832680, 1073787251, 1073764537, 1073753181,
};

/* 2^rho, both fixed point with 16 fractional bits; rho up to HYBLA_EXPONENT_MAX. */
static inline u64 hybla_two_to(u64 rho)
{
	u64 result = 1ULL << 30;

	for (int i = 0; i < 16; i++) {
		if (rho & (1ULL << (15 - i)))
			result = (result * hybla_two_to_fraction[i]) >> 30;
	}
	return (result << (rho >> 16)) >> 14;
}

/* rho = max(RTT / RTT0, 1), and 2^rho - 1 (Caini and Firrincieli 2004, equations 4 and 7). */
static inline void hybla_follow_min_rtt(struct hybla *h, const struct hybla_socket *s,
					const struct hybla_parameters *p)
{
	if (s->min_rtt_us == h->min_rtt_us || s->min_rtt_us == 0)
		return;
	h->min_rtt_us = s->min_rtt_us;
	if (!(p->parts & HYBLA_RHO))
		return;
	u64 rho = ((u64)s->min_rtt_us << 16) / max_u64(p->rtt0_us, 1);
	rho = min_u64(max_u64(rho, HYBLA_ONE), HYBLA_RHO_MAX);
	h->rho = rho;
	h->growth = hybla_two_to(min_u64(rho, HYBLA_EXPONENT_MAX)) - HYBLA_ONE;
}

/* The round-trip time now, queueing included. */
static inline u32 hybla_round_trip_us(const struct hybla *h, const struct hybla_socket *s)
{
	return max_u64(h->rtt_us ? h->rtt_us : s->srtt_us, 1);
}

/*
 * Without a queue a round trip is longer by as much as its acknowledgement waits: for the next segment, or
 * for the receiver's timer. A sender so slow that this is more than the usual noise must not take it for a
 * queue: it would hold its rate for ever.
 */
static inline u32 hybla_noise_us(const struct hybla *h)
{
	u64 spacing_us = h->capacity ? (USEC_PER_SEC << HYBLA_RATE_SHIFT) / h->capacity : 0;

	return max_u64(min_u64(spacing_us, HYBLA_DELAYED_ACK_US), HYBLA_NOISE_US);
}

/* How much longer than the minimum the round trip now is, in sixteenths of the minimum. */
static inline u32 hybla_queue_sixteenths(const struct hybla *h, const struct hybla_socket *s)
{
	u32 rtt_us = hybla_round_trip_us(h, s);

	if (!h->min_rtt_us || rtt_us <= h->min_rtt_us || rtt_us - h->min_rtt_us < hybla_noise_us(h))
		return 0;
	return ((u64)(rtt_us - h->min_rtt_us) * 16) / h->min_rtt_us;
}

static inline bool hybla_queue_stands(const struct hybla *h, const struct hybla_socket *s)
{
	return hybla_queue_sixteenths(h, s) >= HYBLA_STANDING_QUEUE;
}

/*
 * A delivery rate is a lower bound of the link's capacity. With a queue in front of the link it is the
 * capacity itself: then earlier estimates no longer count.
 */
static inline void hybla_follow_capacity(struct hybla *h, const struct hybla_socket *s,
					const struct hybla_parameters *p)
{
	if (s->rate_interval_us) {
		u64 rate = ((u64)s->rate_delivered * (USEC_PER_SEC << HYBLA_RATE_SHIFT)) / s->rate_interval_us;
		h->round_rate = max_u64(h->round_rate, min_u64(rate, ~0U));
		h->capacity = max_u64(h->capacity, h->round_rate);
	}
	if ((s32)(s->delivered - h->round_end) >= 0) {
		h->round_end = s->delivered + s->in_flight;
		if ((p->parts & HYBLA_QUEUE) && h->hoe_applied && h->round_rate && hybla_queue_stands(h, s))
			h->capacity = h->round_rate;
		h->round_rate = 0;
	}
}

/* The bound that the link's capacity sets to the pacing, fixed-point segments per second; 0 is none. */
static inline u64 hybla_capacity_bound(const struct hybla *h, const struct hybla_socket *s,
				       const struct hybla_parameters *p)
{
	u64 known = h->capacity;

	if (!h->min_rtt_us)
		return 0;
	if (!h->hoe_applied) {
		if (!(p->parts & (HYBLA_HOE | HYBLA_QUEUE)))
			return 0;
		/* No estimate yet: the rate at most doubles from one round to the next, as in any slow start. */
		u64 initial = (((u64)h->initial_window * USEC_PER_SEC) << HYBLA_RATE_SHIFT) / h->min_rtt_us;
		known = max_u64(2 * known, initial);
	} else if (!(p->parts & HYBLA_QUEUE)) {
		return 0;
	} else if (!hybla_queue_sixteenths(h, s)) {
		/*
		 * Not above the estimate where a queue stands: others may keep it standing, and would get what we
		 * leave.
		 */
		known += known / 8;
	}
	if (!known)
		return 0;
	/*
	 * Where the round trip varies for other reasons than a queue, a queue seems to stand, the delivery of one
	 * round bounds the next, and so on down to nothing: two segments in each round trip remain.
	 */
	return max_u64(known, ((2ULL * USEC_PER_SEC) << HYBLA_RATE_SHIFT) / h->min_rtt_us);
}

static inline bool hybla_is_reducing(const struct hybla *h)
{
	return h->state == TCP_CA_Recovery || h->state == TCP_CA_CWR;
}

/*
 * A segment every RTT / W, no faster than the link and the socket's own ceiling (SO_MAX_PACING_RATE, which
 * the kernel leaves to the congestion control that sets the pace). Returns whether one of these, not the
 * window, set the pace.
 */
static inline bool hybla_pace(const struct hybla *h, struct hybla_socket *s, const struct hybla_parameters *p)
{
	u64 rtt_us = hybla_round_trip_us(h, s);
	/*
	 * In recovery the kernel's window follows the segments in flight; W is the window at the end of the
	 * recovery.
	 */
	u64 window = hybla_is_reducing(h) ? max_u64(s->cwnd, h->target) : s->cwnd;
	u64 rate = ((window * USEC_PER_SEC) << HYBLA_RATE_SHIFT) / rtt_us;
	u64 bound = hybla_capacity_bound(h, s, p);
	bool bounded = false;

	/* W doubles within a round of slow start: segments of the second half must not wait for the first. */
	if (window < s->ssthresh / 2)
		rate *= 2;
	if (bound && rate > bound) {
		rate = bound;
		bounded = true;
	}
	u64 bytes = (min_u64(rate, HYBLA_RATE_MAX) * s->mss) >> HYBLA_RATE_SHIFT;
	if (bytes > s->max_pacing_rate) {
		bytes = s->max_pacing_rate;
		bounded = true;
	}
	s->pacing_rate = max_u64(bytes, 1);
	return bounded && (p->parts & HYBLA_PACING);
}

/* The ACKs of the first burst are spaced as the bottleneck spaced its segments (Hoe 1996, section 4.1). */
static inline void hybla_follow_train(struct hybla *h, const struct hybla_socket *s,
					const struct hybla_parameters *p)
{
	u32 burst_end = h->train_base + p->burst;

	if (h->train == HYBLA_TRAIN_WAITING) {
		/*
		 * A burst that was still growing when its first ACK came tells about the application, not the link.
		 */
		if (s->data_segs_out < p->burst) {
			h->train = HYBLA_TRAIN_DONE;
			return;
		}
		h->train_first = h->train_last = s->delivered;
		h->train_first_us = h->train_last_us = s->now_us;
		h->train = HYBLA_TRAIN_RUNNING;
	} else if (h->train == HYBLA_TRAIN_RUNNING && (s32)(s->delivered - burst_end) <= 0) {
		h->train_last = s->delivered;
		h->train_last_us = s->now_us;
	}
	if (h->train == HYBLA_TRAIN_RUNNING && (s32)(s->delivered - burst_end) >= 0)
		h->train = HYBLA_TRAIN_DONE;
}

/*
 * Once, at the start: ssthresh = capacity * RTT, and a window that has already run past it comes back to it.
 */
static inline void hybla_apply_hoe(struct hybla *h, struct hybla_socket *s,
				   const struct hybla_parameters *p, u64 rate)
{
	u64 half = 1 << (HYBLA_RATE_SHIFT - 1);
	u64 window = ((rate * h->min_rtt_us) / USEC_PER_SEC + half) >> HYBLA_RATE_SHIFT;

	h->hoe_applied = 1;
	h->capacity = max_u64(h->capacity, min_u64(rate, ~0U));
	if (!(p->parts & HYBLA_HOE) || s->ssthresh < TCP_INFINITE_SSTHRESH)
		return;
	s->ssthresh = min_u64(max_u64(window, 2), HYBLA_WINDOW_MAX);
	if (s->cwnd > s->ssthresh)
		s->cwnd = s->ssthresh;
}

static inline void hybla_estimate_capacity(struct hybla *h, struct hybla_socket *s,
					   const struct hybla_parameters *p)
{
	if (h->hoe_applied)
		return;
	hybla_follow_train(h, s, p);
	if (h->train != HYBLA_TRAIN_DONE)
		return;
	u64 spread_us = h->train_last_us - h->train_first_us;
	u32 segments = h->train_last - h->train_first;
	if ((p->parts & HYBLA_HOE) && segments >= HYBLA_TRAIN_SEGMENTS && spread_us > 0) {
		u64 rate = (segments * (USEC_PER_SEC << HYBLA_RATE_SHIFT)) / spread_us;
		hybla_apply_hoe(h, s, p, min_u64(rate, ~0U));
	} else if (hybla_queue_stands(h, s)) {
		/* No usable burst at the start; the queue says that the delivery rate is now that of the link. */
		hybla_apply_hoe(h, s, p, h->capacity);
	}
}

static inline void hybla_set_window(struct hybla_socket *s, u64 window)
{
	window = min_u64(window, HYBLA_WINDOW_MAX);
	s->cwnd = max_u64(min_u64(window, s->cwnd_clamp), 1);
}

/* W += 2^rho - 1 for each acknowledged segment, up to ssthresh (Caini and Firrincieli 2004, equation 7). */
static inline void hybla_slow_start(struct hybla *h, struct hybla_socket *s, u32 acked)
{
	u64 earned = h->credit + h->growth * acked;
	u64 window = s->cwnd + (earned >> 16);

	h->credit = earned & (HYBLA_ONE - 1);
	if (window >= s->ssthresh) {
		window = s->ssthresh;
		h->credit = 0;
	}
	hybla_set_window(s, window);
}

/*
 * W += rho^2 / W for each acknowledged segment (Caini and Firrincieli 2004, equation 7); rho = 1 while a
 * queue stands. Returns the new W.
 */
static inline u32 hybla_congestion_avoidance(struct hybla *h, const struct hybla_socket *s,
					     const struct hybla_parameters *p, u32 window, u32 acked)
{
	bool in_queue = (p->parts & HYBLA_QUEUE) && hybla_queue_stands(h, s);
	u64 rho = in_queue ? HYBLA_ONE : h->rho;
	u64 whole = max_u64(window, 1) << 16;

	h->credit += ((rho * rho) >> 16) * acked;
	u64 segments = h->credit / whole;
	h->credit -= segments * whole;
	return min_u64(window + segments, HYBLA_WINDOW_MAX);
}

/* Proportional rate reduction (RFC 6937): from the old window to the target within one round trip. */
static inline void hybla_reduce(struct hybla *h, struct hybla_socket *s, u32 acked, u32 newly_lost)
{
	u32 target = h->target;
	u64 may_send;

	h->prr_delivered += acked;
	if (s->in_flight > target) {
		u64 before = max_u64(s->prior_cwnd, 1);
		u64 due = ((u64)target * h->prr_delivered + before - 1) / before;
		may_send = due > s->prr_out ? due - s->prr_out : 0;
	} else {
		u64 delivered_more = h->prr_delivered > s->prr_out ? h->prr_delivered - s->prr_out : 0;
		may_send = max_u64(delivered_more, acked);
		if (!newly_lost)
			may_send++;
		may_send = min_u64(may_send, target - s->in_flight);
	}
	/* The retransmission that begins the recovery goes out at once. */
	if (!s->prr_out)
		may_send = max_u64(may_send, 1);
	hybla_set_window(s, s->in_flight + may_send);
}

/*
 * When a queue comes to stand, the window goes back to what the link carries and an eighth more; once,
 * because where others keep the queue standing, going back again and again would leave them everything.
 */
static inline void hybla_leave_queue(struct hybla *h, struct hybla_socket *s)
{
	u32 queue = hybla_queue_sixteenths(h, s);

	if (queue == 0)
		h->queued = 0;
	if (queue < HYBLA_STANDING_QUEUE || h->queued || !h->hoe_applied || !h->round_rate)
		return;
	h->queued = 1;
	u64 carried = (((u64)h->round_rate * h->min_rtt_us) / USEC_PER_SEC) >> HYBLA_RATE_SHIFT;
	u64 window = max_u64(carried + carried / 8, 2);
	if (window < s->cwnd)
		hybla_set_window(s, window);
}

static inline void hybla_on_init(struct hybla *h, struct hybla_socket *s, const struct hybla_parameters *p)
{
	__builtin_memset(h, 0, sizeof(*h));
	h->rho = HYBLA_ONE;
	h->growth = HYBLA_ONE;
	h->delivered = s->delivered;
	h->lost = s->lost;
	h->train_base = s->delivered;
	hybla_follow_min_rtt(h, s, p);
	h->initial_window = ((u64)h->rho * p->standard_window) >> 16;
	/* A connection that took Hybla later, or whose SYN was lost, keeps the window that it has. */
	if (s->data_segs_out == 0 && s->cwnd >= p->standard_window)
		hybla_set_window(s, h->initial_window);
	if (s->srtt_us)
		hybla_pace(h, s, p);
}

static inline void hybla_on_ack(struct hybla *h, struct hybla_socket *s, const struct hybla_parameters *p)
{
	u32 acked = min_u64(s->delivered - h->delivered, HYBLA_ACKED_MAX);
	u32 newly_lost = s->lost - h->lost;

	h->delivered = s->delivered;
	h->lost = s->lost;
	hybla_follow_min_rtt(h, s, p);
	hybla_follow_capacity(h, s, p);
	bool bounded = hybla_pace(h, s, p);
	/* Where the window does not hold the sender back, an ACK does not justify a larger one (RFC 7661). */
	bool grows = acked && !s->app_limited && (!bounded || s->cwnd_limited);

	if (hybla_is_reducing(h)) {
		if (grows && (p->parts & HYBLA_RECOVERY_GROWTH))
			h->target = hybla_congestion_avoidance(h, s, p, h->target, acked);
		hybla_reduce(h, s, acked, newly_lost);
	} else if (s->cwnd < s->ssthresh) {
		if (acked && !s->app_limited)
			hybla_slow_start(h, s, acked);
	} else if (grows) {
		hybla_set_window(s, hybla_congestion_avoidance(h, s, p, s->cwnd, acked));
		if (p->parts & HYBLA_QUEUE)
			hybla_leave_queue(h, s);
	}
	if (acked)
		hybla_estimate_capacity(h, s, p);
	hybla_pace(h, s, p);
}

static inline void hybla_on_rtt(struct hybla *h, u32 sample_us)
{
	if (sample_us && h->min_rtt_us)
		h->rtt_us = smoothed_rtt_us(h->rtt_us, sample_us, h->min_rtt_us);
}

static inline void hybla_on_set_state(struct hybla *h, struct hybla_socket *s, u8 new_state)
{
	bool reducing = hybla_is_reducing(h);

	if (new_state == TCP_CA_Recovery || new_state == TCP_CA_CWR) {
		if (!reducing) {
			h->prr_delivered = 0;
			h->undone = 0;
			h->target = s->ssthresh;
		}
	} else if (reducing && new_state <= TCP_CA_Disorder && !h->undone) {
		hybla_set_window(s, max_u64(h->target, 2));
	}
	h->credit = 0;
	h->state = new_state;
}

/* Half the window, as any TCP of its time (RFC 5681, equation 4), segments. */
static inline u32 hybla_ssthresh_after_loss(u32 cwnd)
{
	return max_u64(cwnd / 2, 2);
}

/* A loss that was none: the window comes back (RFC 4015). Returns it. */
static inline u32 hybla_on_undo(struct hybla *h, u32 cwnd, u32 prior_cwnd)
{
	h->undone = 1;
	return max_u64(cwnd, prior_cwnd);
}

/* Any event, as virtual time and the parity test tell it. The eBPF program calls the functions above. */
static inline void hybla_step(struct hybla *h, struct hybla_socket *s, const struct hybla_parameters *p)
{
	switch (s->event) {
	case CORE_INIT:
		hybla_on_init(h, s, p);
		break;
	case CORE_ACK:
		hybla_on_ack(h, s, p);
		break;
	case CORE_RTT:
		hybla_on_rtt(h, s->argument);
		break;
	case CORE_SET_STATE:
		hybla_on_set_state(h, s, s->argument);
		break;
	case CORE_SSTHRESH:
		s->ssthresh = hybla_ssthresh_after_loss(s->cwnd);
		break;
	case CORE_UNDO:
		s->cwnd = hybla_on_undo(h, s->cwnd, s->prior_cwnd);
		break;
	}
}
