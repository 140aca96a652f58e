/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The arithmetic of an AQM without a queue, for what leaves over a leg beside the connections that have
 * explicit rates (docs/explicit.md), at the egress in the kernel and in virtual time.
 *
 * The controller says at which rate such traffic may leave. A virtual queue, which is a number, drains at
 * this rate (Kunniyur and Srikant, "Analysis and Design of an Adaptive Virtual Queue Algorithm for Active
 * Queue Management", 2001). How long a packet would wait in it is judged by CoDel's law (RFC 8289): the first
 * mark comes once the wait has been above the target for an interval, the next ones at intervals that shrink
 * with the square root of their number. The marks are of those flows alone that the controller names, so that
 * one that keeps to its fair part is never marked.
 *
 * Beyond the limit, a wait that a burst within a round trip does not reach, every packet of the named flows
 * is marked or dropped: slow start, and streams that do not slow down.
 */
#pragma once

#include "core.h"

/*
 * Bounds that no arithmetic below can overflow: of the rate, bytes per second; of a time, and of the target;
 * of a packet.
 */
#define AQM_RATE_MAX (1ULL << 34)
#define AQM_TIME_MAX_US (1U << 28)
#define AQM_TARGET_MAX_US (1U << 24)
#define AQM_BYTES_MAX (1U << 20)
/* The limit, in multiples of the target. Beyond twice the limit a mark does not help, and what may be dropped is. */
#define AQM_LIMIT 5
/* A pause of so many intervals ends what was known of the right number of marks (RFC 8289, section 4.2). */
#define AQM_PAUSE 16
/* Beyond this number the spacing of marks does not shrink. */
#define AQM_COUNT_MAX 4096

/* What becomes of a packet. */
enum {
	AQM_PASS,
	AQM_MARK, /* CE instead of ECT (RFC 3168) */
	AQM_DROP,
};

/* The virtual queue of a leg, and CoDel's state. */
struct aqm {
	u64 at_us;      /* when the queue was so long */
	u64 backlog;    /* millionths of a byte: it drains by the rate in each microsecond */
	u64 above_us;   /* when the wait has been above the target for an interval, 0: it is not above */
	u64 next_us;    /* when the next mark is due, while it marks */
	u32 count;      /* the marks since it began to mark, and those that are carried over from before */
	u32 last_count; /* the same when it began */
	u32 marking;    /* it marks */
	u32 reserved;
};

/* A packet that leaves, and what the controller has set. It sets `verdict`. */
struct aqm_packet {
	u64 now_us;
	u64 rate;        /* bytes per second at which the virtual queue drains */
	u32 bytes;       /* from the header of IP on */
	u32 target_us;   /* the wait that is no sign of too much */
	u32 interval_us; /* a round trip or more */
	u32 judged;      /* it is of a flow that may be marked, and can be */
	u32 ecn;         /* it is ECN-capable: ECT or CE */
	u32 may_drop;    /* one that is not may be dropped */
	u32 verdict;     /* AQM_PASS and so on */
	u32 reserved;
};

/* Functions are not called while a spin lock is held. */
#define AQM_INLINE static inline __attribute__((always_inline))

/*
 * interval / sqrt(count). The root, in sixteen bits behind the point, is Newton's: from 8 so many steps reach
 * those of 1 and of AQM_COUNT_MAX.
 */
AQM_INLINE u64 aqm_spacing_us(u32 interval_us, u32 count)
{
	u64 square = (u64)count << 32, root = 8 << 16;

	for (u32 step = 0; step < 7; step++)
		root = (root + square / root) / 2;
	return ((u64)interval_us << 16) / root;
}

/* Whether the wait has been above the target for an interval. */
AQM_INLINE bool aqm_is_standing(struct aqm *a, const struct aqm_packet *p, u64 wait_us)
{
	if (wait_us < p->target_us) {
		a->above_us = 0;
		return false;
	}
	if (!a->above_us)
		a->above_us = p->now_us + p->interval_us;
	return p->now_us >= a->above_us;
}

/* Whether a mark is due, by CoDel's law, for a packet that can have it. */
AQM_INLINE bool aqm_is_due(struct aqm *a, const struct aqm_packet *p, bool standing)
{
	if (!standing) {
		a->marking = 0;
		return false;
	}
	if (!p->judged || (a->marking && p->now_us < a->next_us))
		return false;
	if (a->marking) {
		a->count = min_u64(a->count + 1ULL, AQM_COUNT_MAX);
	} else {
		/* It has just been too much: the number that was needed then is about right. */
		u32 before = a->count - a->last_count;
		bool recently = p->now_us < a->next_us + (u64)AQM_PAUSE * p->interval_us;

		a->count = before > 1 && recently ? before : 1;
		a->last_count = a->count;
		a->marking = 1;
	}
	a->next_us = p->now_us + aqm_spacing_us(p->interval_us, a->count);
	return true;
}

/* What becomes of one that is to be told of too much. */
AQM_INLINE u32 aqm_signal(const struct aqm_packet *p, bool far_too_much)
{
	if (p->ecn && !(far_too_much && p->may_drop))
		return AQM_MARK;
	return p->may_drop ? AQM_DROP : AQM_PASS;
}

/* A packet leaves: its verdict, and the virtual queue behind it. */
AQM_INLINE void aqm_step(struct aqm *a, struct aqm_packet *p)
{
	u64 rate = min_u64(max_u64(p->rate, 1), AQM_RATE_MAX);
	/* The clocks of two processors may differ. */
	u64 elapsed_us = max_u64(p->now_us, a->at_us) - a->at_us;
	u64 target_us = min_u64(p->target_us, AQM_TARGET_MAX_US), limit_us = AQM_LIMIT * target_us;

	a->backlog -= min_u64(a->backlog, rate * min_u64(elapsed_us, AQM_TIME_MAX_US));
	a->at_us = max_u64(a->at_us, p->now_us);
	u64 wait_us = a->backlog / rate;
	bool due = aqm_is_due(a, p, aqm_is_standing(a, p, wait_us));

	p->verdict = AQM_PASS;
	if (p->judged && (due || wait_us > limit_us))
		p->verdict = aqm_signal(p, wait_us > 2 * limit_us);
	if (p->verdict != AQM_DROP) {
		a->backlog += min_u64(p->bytes, AQM_BYTES_MAX) * USEC_PER_SEC;
		/* What nobody slows down must not be held against those that come later. */
		a->backlog = min_u64(a->backlog, rate * (2 * limit_us + target_us));
	}
}
