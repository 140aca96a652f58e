/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The arithmetic of a sender that is given its rate, in the kernel and in virtual time (docs/explicit.md).
 *
 *     pacing rate = the payload's part of the rate that the controller has set
 *     W           = rate * (RTT + a quarter + 20 ms) + 4 segments
 *
 * where RTT is the shortest round trip, plus the queue on the way to the receiver, up to as much again, plus
 * the time that acknowledgements wait on their way back. A loss changes nothing: it says that a segment must
 * be sent again, not that the rate was wrong.
 *
 * The way to the receiver is measured as LEDBAT measures it (RFC 6817, section 3.4.1).
 */
#pragma once

#include "core.h"

/* The window without a rate, segments in a round trip (RFC 6928). */
#define EXPLICIT_STANDARD_WINDOW 10
/* The window has room for a quarter of a round trip more, for acknowledgements that come late, */
#define EXPLICIT_QUARTER 4
/* for a queue of so many round trips, */
#define EXPLICIT_QUEUE 6
/* for the scheduling of this and other hosts, */
#define EXPLICIT_SCHEDULING_US 20000
/* and for segments that are being made. */
#define EXPLICIT_SPARE_SEGMENTS 4
/*
 * Two segments leave together, which halves the work, unless they take this long at the sender's rate: of a
 * crowd, each would have a second segment wait in the link's queue.
 */
#define EXPLICIT_PAIR_US 20000
/* The relay pushes a connection so often that has sent its SYN-ACK and is not established yet. */
#define EXPLICIT_PUSHED_US 5000
/*
 * Upper bounds that no arithmetic below can overflow: of the window, segments; of the rate, bytes per second;
 * of a time.
 */
#define EXPLICIT_WINDOW_MAX (1U << 24)
#define EXPLICIT_RATE_MAX (1ULL << 34)
#define EXPLICIT_TIME_MAX_US (1ULL << 29)
/* The shortest round trip is of the last 15 to 30 seconds: a path may have become longer. */
#define EXPLICIT_EPOCH_US (15 * USEC_PER_SEC)
/* The recent round trip is the shortest of this time: delayed acknowledgements make single ones long. */
#define EXPLICIT_RECENT_US 50000
/*
 * Receivers' clocks that count milliseconds differ from ours by less than this part of the time that passes.
 */
#define EXPLICIT_TICKS 16
/* The delay of the way to the receiver is unknown. */
#define EXPLICIT_UNKNOWN (~0U)
/* A path without any measurement is taken to be this long. */
#define EXPLICIT_DEFAULT_RTT_US 100000

/* The state of a connection: its measurements of the path. */
struct explicit_path {
	u64 epoch_end_us;      /* when the next epoch of the shortest round trip begins */
	u64 recent_end_us;     /* when the next report is due */
	u64 first_us;          /* when the first timestamp came, 0: none yet */
	u32 first_age_us;      /* how long before that the receiver had sent it, by both clocks */
	u32 min_rtt_us;        /* of this epoch, 0: none */
	u32 before_us;         /* of the epoch before */
	u32 recent_rtt_us;     /* since the last report */
	/*
	 * The delay of the way to the receiver, off by the difference of two clocks, modulo 2^32, and odd; 0:
	 * none.
	 */
	u32 min_forward_us;    /* of this epoch */
	u32 forward_before_us; /* of the epoch before */
	u32 recent_forward_us; /* since the last report */
	/* The last report. */
	u32 rtt_us;            /* the recent round trip, 0: none yet */
	u32 shortest_us;       /* the shortest of the last 15 to 30 s */
	u32 forward_us;        /* the way to the receiver, above its shortest, or EXPLICIT_UNKNOWN */
};

_Static_assert(sizeof(struct explicit_path) == 64, "it shares the socket's space for a congestion control");

/* What happens to a connection. */
enum {
	EXPLICIT_INIT,   /* it begins, or takes this congestion control */
	EXPLICIT_SAMPLE, /* an acknowledgement has measured `sample_us` and carries `timestamp` */
	EXPLICIT_OBEY,   /* rate and window are to follow from what is known now */
};

/* The socket as the algorithm sees it. It sets `pacing_rate` and `cwnd`. */
struct explicit_socket {
	u64 now_us;
	u64 rate;            /* set by the controller, bytes on the wire per second; 0 is none */
	u64 max_pacing_rate; /* payload bytes per second */
	u64 pacing_rate;     /* the same */
	u32 event;           /* EXPLICIT_INIT and so on */
	u32 sample_us;       /* 0 is none */
	u32 timestamp;       /* of the receiver, milliseconds (RFC 7323); 0 is none */
	u32 empty_rtt_us;    /* the round trip of the empty link, before one is measured; 0 is unknown */
	u32 mss;             /* payload bytes of a segment */
	u32 header;          /* bytes of IP and TCP in front of them */
	u32 cwnd;            /* segments */
	u32 cwnd_clamp;
};

/* The smaller of two delays by two clocks, modulo 2^32; 0 is none. */
static inline u32 explicit_shorter_way(u32 a, u32 b)
{
	if (!a || !b)
		return a | b;
	return (s32)(a - b) < 0 ? a : b;
}

/* The shortest round trip that has been measured, 0: none. */
static inline u32 explicit_measured_us(const struct explicit_path *p)
{
	return min_u64(p->min_rtt_us - 1U, p->before_us - 1U) + 1U; /* none becomes the largest */
}

static inline u64 explicit_shortest_us(const struct explicit_path *p, u32 empty_rtt_us)
{
	u32 measured = explicit_measured_us(p);

	if (measured)
		return measured;
	return empty_rtt_us ? empty_rtt_us : EXPLICIT_DEFAULT_RTT_US;
}

/*
 * The way to the receiver: `age_us` is our clock now less the receiver's when it sent the timestamp, so that
 * the way out is the round trip less the age, but for a constant (RFC 6817, section 3.4.1).
 */
static inline void explicit_follow_way(struct explicit_path *p, u64 now_us, u32 rtt_us, u32 timestamp)
{
	u32 age_us = (u32)now_us - timestamp * 1000;

	if (!timestamp)
		return;
	if (!p->first_us) {
		p->first_us = now_us;
		p->first_age_us = age_us;
	}
	/*
	 * Acknowledgements can wait for a round trip at most. Beyond that, the receiver's clock has other ticks.
	 */
	s32 difference = age_us - p->first_age_us;
	u64 most = rtt_us + (now_us - p->first_us) / EXPLICIT_TICKS;
	if ((u64)(difference < 0 ? -(s64)difference : difference) > most) {
		p->min_forward_us = p->forward_before_us = p->recent_forward_us = 0;
		return;
	}
	u32 forward_us = (rtt_us - age_us) | 1;
	p->min_forward_us = explicit_shorter_way(p->min_forward_us, forward_us);
	p->recent_forward_us = explicit_shorter_way(p->recent_forward_us, forward_us);
}

static inline u32 explicit_forward_us(const struct explicit_path *p)
{
	u32 least = explicit_shorter_way(p->min_forward_us, p->forward_before_us);

	return p->recent_forward_us ? p->recent_forward_us - least : EXPLICIT_UNKNOWN;
}

static inline void explicit_on_init(struct explicit_path *p)
{
	__builtin_memset(p, 0, sizeof(*p));
	p->forward_us = EXPLICIT_UNKNOWN;
}

/* A sample of the round-trip time, and the receiver's timestamp that came with it. */
static inline void explicit_on_sample(struct explicit_path *p, u64 now_us, u32 rtt_us, u32 timestamp)
{
	if (!rtt_us)
		return;
	if (now_us >= p->epoch_end_us) {
		p->before_us = p->min_rtt_us;
		p->forward_before_us = p->min_forward_us;
		p->min_rtt_us = p->min_forward_us = 0;
		p->epoch_end_us = now_us + EXPLICIT_EPOCH_US;
	}
	if (!p->min_rtt_us || rtt_us < p->min_rtt_us)
		p->min_rtt_us = rtt_us;
	if (!p->recent_rtt_us || rtt_us < p->recent_rtt_us)
		p->recent_rtt_us = rtt_us;
	explicit_follow_way(p, now_us, rtt_us, timestamp);
	if (now_us >= p->recent_end_us) {
		p->rtt_us = p->recent_rtt_us;
		p->shortest_us = explicit_measured_us(p);
		p->forward_us = explicit_forward_us(p);
		p->recent_rtt_us = p->recent_forward_us = 0;
		p->recent_end_us = now_us + EXPLICIT_RECENT_US;
	}
}

/*
 * The round trip that the window is made for. A queue counts up to some of the shortest round trips: the rate
 * drains it, and what it has dropped counts as in flight until acknowledgements say otherwise. No rate can
 * shorten the wait of acknowledgements on their way back, which counts in full.
 */
static inline u64 explicit_round_trip_us(const struct explicit_path *p, u64 shortest_us)
{
	u64 beyond_us = max_u64(p->rtt_us, shortest_us) - shortest_us;
	u64 queue_us = min_u64(min_u64(p->forward_us, beyond_us), EXPLICIT_QUEUE * shortest_us);
	u64 back_us = p->forward_us != EXPLICIT_UNKNOWN ? beyond_us - min_u64(p->forward_us, beyond_us) : 0;

	return min_u64(shortest_us + queue_us + back_us, EXPLICIT_TIME_MAX_US);
}

/* The rate alone, for the next transmission. */
static inline void explicit_pace(const struct explicit_path *p, struct explicit_socket *s)
{
	u64 mss = max_u64(s->mss, 1);
	u64 rate = min_u64(s->rate, EXPLICIT_RATE_MAX) * mss / (mss + s->header);

	if (!rate) { /* No controller allocates this link, or not yet. */
		u64 rtt_us = explicit_round_trip_us(p, explicit_shortest_us(p, s->empty_rtt_us));

		rate = EXPLICIT_STANDARD_WINDOW * mss * USEC_PER_SEC / rtt_us;
	}
	s->pacing_rate = max_u64(min_u64(rate, s->max_pacing_rate), 1);
}

/* How many segments leave together at least. */
static inline u32 explicit_burst(u64 pacing_rate, u32 mss)
{
	return pacing_rate * EXPLICIT_PAIR_US < 2 * USEC_PER_SEC * mss ? 1 : 2;
}

/* The segments that are sent in so many microseconds, and one. */
static inline u32 explicit_segments_in(u64 pacing_rate, u32 mss, u32 time_us)
{
	return min_u64(pacing_rate * time_us / USEC_PER_SEC / max_u64(mss, 1), EXPLICIT_WINDOW_MAX) + 1;
}

/* Rate and window. */
static inline void explicit_obey(const struct explicit_path *p, struct explicit_socket *s)
{
	u64 rtt_us = explicit_round_trip_us(p, explicit_shortest_us(p, s->empty_rtt_us));
	u64 mss = max_u64(s->mss, 1);

	explicit_pace(p, s);
	u64 covered_us = rtt_us + rtt_us / EXPLICIT_QUARTER + EXPLICIT_SCHEDULING_US;
	u64 window = s->pacing_rate * covered_us / USEC_PER_SEC / mss + EXPLICIT_SPARE_SEGMENTS;
	window = min_u64(min_u64(window, EXPLICIT_WINDOW_MAX), s->cwnd_clamp);
	s->cwnd = max_u64(window, 1);
}

/*
 * The rate of a connection that the controller has not set one for yet: its share, by weight, of `rate`,
 * which those that the controller knows of, of `known_weight`, share with those that have begun since, of
 * `joined`. It is asked for before each transmission: the first of a crowd must not keep the share that it
 * had alone.
 */
static inline u64 explicit_initial_rate(u64 rate, u32 weight, u32 known_weight, u32 joined)
{
	return rate * weight / max_u64(known_weight + max_u64(joined, weight), 1);
}

/* Any event, as virtual time and the parity test tell it. The eBPF program calls the functions above. */
static inline void explicit_step(struct explicit_path *p, struct explicit_socket *s)
{
	switch (s->event) {
	case EXPLICIT_INIT:
		explicit_on_init(p);
		break;
	case EXPLICIT_SAMPLE:
		explicit_on_sample(p, s->now_us, s->sample_us, s->timestamp);
		break;
	case EXPLICIT_OBEY:
		explicit_obey(p, s);
		break;
	}
}
