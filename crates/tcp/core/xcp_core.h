/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The arithmetic of bentpipe's sender of XCP (Katabi, Handley and Rohrs 2002, section 3.3) and of P-XCP
 * (Zhou, Yeung and Li 2004) in the kernel (docs/xcp.md).
 *
 *     W += feedback * RTT     for the feedback that the receiver has returned, bytes per second
 *     loss                    XCP: half the window, as any TCP; P-XCP: it is sent again, and the window stays
 *     timeout                 one segment, as any TCP
 *     pacing:                 a segment every RTT / W
 *
 * Virtual time has the published sender instead (crates/tcp/src/congestion/xcp.rs), because the published
 * experiments are about that one: its window is in bytes, it asks for more in every segment, and where there
 * is no router it is NewReno. This one counts whole segments, asks for what the link is known to carry, and
 * must decide when another congestion control of the kernel is to take its place. crates/tcp/tests holds the
 * rules that both share to each other.
 */
#pragma once

#include "core.h"

/* Bounds of the window, segments; the upper one is such that no arithmetic below can overflow. */
#define XCP_WINDOW_MAX (1U << 26)
#define XCP_WINDOW_MIN 2U
/* On one host or one cable the shortest round trip is a matter of luck, and says nothing about the window. */
#define XCP_RTT_FLOOR_US 1000
#define XCP_NOISE_US 4000
/* No round trip is longer, as far as the arithmetic goes. */
#define XCP_RTT_MAX_US (1U << 29)
/*
 * The other end is silent after 4 rounds without feedback and as many segments. Where segments are missing,
 * SACK blocks may have taken the place of the feedback, and it takes four times as many rounds.
 */
#define XCP_SILENT_SEGMENTS 64
#define XCP_SILENCE 16
#define XCP_SILENT_ROUND 4
/* After this many rounds with a queue, there is no router of XCP in front of the bottleneck. */
#define XCP_QUEUED_ROUNDS 2
/* What the window is limited to where the link's capacity is known: never below this, segments. */
#define XCP_LIMIT_MIN 10

/* The state of a connection. */
struct xcp {
	u64 asked;           /* `asked` of the socket, when last seen */
	u64 allowance;       /* bytes per second that have been requested lately and not been granted */
	u64 recent;          /* requested in the last few rounds, older ones counting less */
	u64 round;           /* requested in this one */
	s64 credit;          /* part of a segment by which the window is to change, 16 fractional bits */
	u32 heard;           /* `heard` of the socket, when last seen */
	u32 total;           /* `heard_total` then */
	u32 heard_delivered; /* `delivered` then */
	u32 round_end;       /* `delivered` at which this round ends */
	u32 window;          /* W, segments */
	u32 rtt_us;          /* the smoothed RTT, with samples bounded as in smoothed_rtt_us() */
	u32 silence;
	u32 round_heard;     /* `heard` when this round began */
	u8 queued_rounds;    /* consecutive rounds with a queue that no router of XCP would have allowed */
	u8 draining;         /* W has been reduced, and more than it is in flight */
	u8 reserved[30];
};

_Static_assert(sizeof(struct xcp) == CORE_STATE_BYTES, "it fills the space for a congestion control");

/*
 * The socket as the algorithm sees it, with the names of Linux. It sets `pacing_rate`, `cwnd`, `ssthresh`,
 * what the next segments say (`request_rtt_us`, `spacing_ns`, `request`), and `fall_back`.
 */
struct xcp_socket {
	u64 capacity;        /* of the link, bytes on the wire per second; 0 is unknown */
	u64 max_pacing_rate; /* payload bytes per second */
	u64 pacing_rate;     /* the same */
	u64 asked;           /* the sum of all requests that have been sent, bytes per second */
	u32 event;           /* CORE_INIT and so on */
	u32 argument;
	u32 heard_total;     /* the receiver's sum of all feedback, bytes per second, modulo 2^32 */
	u32 heard;           /* how often it has been heard */
	u32 cwnd;            /* segments, as all windows and counters here */
	u32 cwnd_clamp;
	u32 ssthresh;
	u32 prior_cwnd;      /* when this recovery began */
	u32 in_flight;       /* sent, not delivered, not known to be lost: RFC 6675's pipe */
	u32 data_segs_out;   /* sent since the connection began */
	u32 delivered;       /* since the connection began */
	u32 mss;             /* payload bytes of a segment */
	u32 header;          /* bytes of IP and TCP in front of them */
	u32 snd_wnd;         /* the receiver's window, bytes */
	u32 srtt_us;         /* the smoothed RTT, 0 is none */
	u32 min_rtt_us;      /* the minimum RTT, 0 is none */
	u32 app_limited;     /* the application, not the network, held the sender back */
	u32 holes;           /* SACK blocks have reported segments */
	u32 to_retransmit;   /* there is a loss to send again */
	u32 ignores_loss;    /* P-XCP: a loss is not congestion */
	u32 request_rtt_us;  /* what segments say: the round-trip time, */
	u32 spacing_ns;      /* the time between two segments, */
	s32 request;         /* and the change of rate that is requested for each, bytes per second */
	u32 fall_back;       /* another congestion control is to take over */
};

/* The round-trip time without queues; 0 is not known yet. */
static inline u32 xcp_min_rtt_us(const struct xcp_socket *s)
{
	return s->min_rtt_us ? max_u64(s->min_rtt_us, XCP_RTT_FLOOR_US) : 0;
}

/* The round-trip time now; 0 is not known yet. */
static inline u32 xcp_round_trip_us(const struct xcp *x, const struct xcp_socket *s)
{
	u32 rtt_us = min_u64(x->rtt_us ? x->rtt_us : s->srtt_us, XCP_RTT_MAX_US);

	return rtt_us ? max_u64(rtt_us, XCP_RTT_FLOOR_US) : 0;
}

/* What a full segment takes of the link, bytes. */
static inline u32 xcp_wire_size(const struct xcp_socket *s)
{
	return max_u64(s->mss + s->header, 1);
}

/* No more than two bandwidth-delay products, where the bandwidth is known: whatever the options say. */
static inline u64 xcp_window_limit(const struct xcp_socket *s)
{
	u64 limit = XCP_WINDOW_MAX;

	if (s->capacity && xcp_min_rtt_us(s))
		limit = 2 * s->capacity * xcp_min_rtt_us(s) / USEC_PER_SEC / xcp_wire_size(s);
	return max_u64(min_u64(limit, XCP_WINDOW_MAX), XCP_LIMIT_MIN);
}

static inline void xcp_set_window(struct xcp *x, struct xcp_socket *s, u64 window)
{
	window = min_u64(min_u64(window, xcp_window_limit(s)), s->cwnd_clamp);
	x->window = max_u64(window, XCP_WINDOW_MIN);
	s->cwnd = x->window;
}

/*
 * After a reduction nothing new is sent until the segments in flight fit into W. Retransmissions do not wait
 * for that, or the timer would expire before they are acknowledged: each acknowledgement releases one.
 */
static inline void xcp_drain(struct xcp *x, struct xcp_socket *s)
{
	if (!x->draining || s->in_flight <= x->window) {
		x->draining = 0;
		s->cwnd = x->window;
		return;
	}
	s->cwnd = s->in_flight + (s->to_retransmit != 0);
}

static inline void xcp_pace(const struct xcp *x, struct xcp_socket *s)
{
	u64 rtt_us = max_u64(xcp_round_trip_us(x, s), 1);
	u64 rate = (u64)x->window * s->mss * USEC_PER_SEC / rtt_us;

	/* A sixteenth more, so that the window, not the pace, is what holds the sender back. */
	rate = min_u64(rate + rate / 16, s->max_pacing_rate);
	s->pacing_rate = max_u64(rate, 1);
}

/* The application or the receiver holds the sender back: more of the link would be of no use to it. */
static inline bool xcp_is_limited_elsewhere(const struct xcp_socket *s)
{
	/* A sender that has not begun is not known to be slow. */
	bool by_application = s->app_limited && s->data_segs_out && s->in_flight < s->cwnd;

	return by_application || s->snd_wnd < (u64)s->cwnd * s->mss;
}

/*
 * How much longer the round trip is than without queues, microseconds; a few milliseconds are scheduling
 * noise.
 */
static inline u64 xcp_queue_us(const struct xcp *x, const struct xcp_socket *s)
{
	u64 least_us = (u64)xcp_min_rtt_us(s) + XCP_NOISE_US, now_us = xcp_round_trip_us(x, s);

	return now_us > least_us ? now_us - least_us : 0;
}

/*
 * A queue that no router of XCP sees: the path has another bottleneck, or one that is slower than configured.
 */
static inline bool xcp_has_foreign_queue(const struct xcp *x, const struct xcp_socket *s)
{
	return xcp_queue_us(x, s) > xcp_min_rtt_us(s) / 2;
}

/* The change of rate that the sender wants within a round trip, bytes per second. */
static inline s64 xcp_wanted_change(const struct xcp *x, const struct xcp_socket *s, u64 rate)
{
	if (xcp_has_foreign_queue(x, s))
		return -(s64)(rate / 8);
	if (xcp_is_limited_elsewhere(s))
		return 0;
	if (!s->capacity)
		return xcp_queue_us(x, s) > xcp_min_rtt_us(s) / 4 ? 0 : rate;
	/* A little more than the capacity: a sender that requests nothing is taken for one that wants nothing. */
	return (s64)(s->capacity + s->capacity / 16) - (s64)rate;
}

/* The congestion header of the next segments (Katabi and others 2002, section 3.1). */
static inline void xcp_set_request(const struct xcp *x, struct xcp_socket *s)
{
	u64 window = max_u64(x->window, 1);
	u64 rtt_us = xcp_round_trip_us(x, s);
	/*
	 * Without the queue, but with what segments and acknowledgements wait for each other: by the minimum alone
	 * the window would seem larger than the link where it is not, and the sender would ask for nothing.
	 */
	u64 rate = window * xcp_wire_size(s) * USEC_PER_SEC / max_u64(rtt_us - xcp_queue_us(x, s), 1);

	s->request_rtt_us = rtt_us;
	s->spacing_ns = min_u64(rtt_us * 1000 / window, ~0U);
	if (!rtt_us || !xcp_min_rtt_us(s)) {
		s->request = 0;
		return;
	}
	s64 change = xcp_wanted_change(x, s, rate);
	u64 size = min_u64(change < 0 ? -change : change, 1ULL << 40) / window;
	size = min_u64(size, 0x7fffffff);
	s->request = change < 0 ? -(s32)size : (s32)size;
}

/* W += feedback * RTT (Katabi and others 2002, section 3.3). */
static inline void xcp_apply(struct xcp *x, struct xcp_socket *s, s32 feedback)
{
	u64 size = feedback < 0 ? -(s64)feedback : feedback;
	/* In 65,536ths of a segment; the RTT is at most 2^29 microseconds and the feedback at most 2^31. */
	u64 change = size * xcp_round_trip_us(x, s) / xcp_wire_size(s) * 65536 / USEC_PER_SEC;

	x->credit += feedback < 0 ? -(s64)change : (s64)change;
	s64 segments = x->credit >> 16;
	x->credit -= segments * 65536;
	if (segments < 0)
		xcp_set_window(x, s, x->window > -segments ? x->window + segments : 0);
	else if (segments > 0)
		xcp_set_window(x, s, x->window + segments);
}

/* The change of the receiver's sum; no more than has been requested. */
static inline void xcp_take_feedback(struct xcp *x, struct xcp_socket *s)
{
	if (s->heard == x->heard)
		return;
	s32 feedback = s->heard_total - x->total;

	x->heard = s->heard;
	x->total = s->heard_total;
	x->heard_delivered = s->delivered;
	x->silence = 0;
	if (feedback > 0) {
		feedback = min_u64(feedback, x->allowance);
		x->allowance -= feedback;
	}
	xcp_apply(x, s, feedback);
}

static inline void xcp_follow_rounds(struct xcp *x, const struct xcp_socket *s)
{
	u64 asked = s->asked - x->asked;

	x->asked = s->asked;
	x->round += asked;
	x->allowance += asked;
	if ((s32)(s->delivered - x->round_end) < 0)
		return;
	x->round_end = s->delivered + s->in_flight;
	x->recent += x->round - x->recent / 4;
	x->allowance = min_u64(x->allowance, x->recent);
	x->round = 0;
	x->queued_rounds = xcp_has_foreign_queue(x, s) ? min_u64(x->queued_rounds + 1, XCP_QUEUED_ROUNDS) : 0;
	if (x->round_heard == s->heard)
		x->silence += s->holes ? 1 : XCP_SILENT_ROUND;
	x->round_heard = s->heard;
}

static inline bool xcp_is_silent(const struct xcp *x, const struct xcp_socket *s)
{
	return x->silence >= XCP_SILENCE && s->delivered - x->heard_delivered >= XCP_SILENT_SEGMENTS;
}

/*
 * Without a capacity and without a router nothing limits the sender: it would ask for twice as much for ever.
 */
static inline bool xcp_is_ungoverned(const struct xcp *x, const struct xcp_socket *s)
{
	return !s->capacity && x->queued_rounds >= XCP_QUEUED_ROUNDS;
}

static inline void xcp_on_init(struct xcp *x, struct xcp_socket *s)
{
	__builtin_memset(x, 0, sizeof(*x));
	x->asked = s->asked;
	x->heard = x->round_heard = s->heard;
	x->total = s->heard_total;
	x->heard_delivered = s->delivered;
	x->round_end = s->delivered + 1;
	x->window = s->cwnd;
	if (s->srtt_us)
		xcp_pace(x, s);
	xcp_set_request(x, s);
}

/* With `fall_back` set, window, pace and request are left as they were. */
static inline void xcp_on_ack(struct xcp *x, struct xcp_socket *s)
{
	/* The kernel has changed it: a timeout, or one that was none. */
	if (!x->draining)
		x->window = s->cwnd;
	xcp_follow_rounds(x, s);
	xcp_take_feedback(x, s);
	s->fall_back = xcp_is_silent(x, s) || xcp_is_ungoverned(x, s);
	if (s->fall_back)
		return;
	xcp_drain(x, s);
	xcp_pace(x, s);
	xcp_set_request(x, s);
}

static inline void xcp_on_rtt(struct xcp *x, u32 sample_us, u32 min_rtt_us)
{
	if (sample_us && min_rtt_us)
		x->rtt_us = smoothed_rtt_us(x->rtt_us, sample_us, max_u64(min_rtt_us, XCP_RTT_FLOOR_US));
}

static inline void xcp_on_set_state(struct xcp *x, struct xcp_socket *s, u8 new_state)
{
	/*
	 * Congestion that a router or this host's queue has reported (CWR) is no loss, and counts for P-XCP too.
	 */
	if (new_state == TCP_CA_CWR || (new_state == TCP_CA_Recovery && !s->ignores_loss)) {
		x->window = s->ssthresh;
		x->draining = 1;
	} else if (x->draining && new_state != TCP_CA_Recovery) {
		/* A timeout has a window of its own. */
		if (new_state != TCP_CA_Loss)
			s->cwnd = x->window;
		x->draining = 0;
	}
}

/*
 * Half the window, as any TCP of its time (RFC 5681, equation 4); xcp_on_set_state() changes the window
 * itself.
 */
static inline u32 xcp_ssthresh_after_loss(u32 cwnd)
{
	return max_u64(cwnd / 2, XCP_WINDOW_MIN);
}

/* A loss that was none: the window comes back (RFC 4015). Returns it. */
static inline u32 xcp_on_undo(struct xcp *x, u32 cwnd, u32 prior_cwnd)
{
	x->draining = 0;
	return max_u64(cwnd, prior_cwnd);
}

/* Any event, as the parity test tells it. The eBPF program calls the functions above. */
static inline void xcp_step(struct xcp *x, struct xcp_socket *s)
{
	switch (s->event) {
	case CORE_INIT:
		xcp_on_init(x, s);
		break;
	case CORE_ACK:
		xcp_on_ack(x, s);
		break;
	case CORE_RTT:
		xcp_on_rtt(x, s->argument, s->min_rtt_us);
		break;
	case CORE_SET_STATE:
		xcp_on_set_state(x, s, s->argument);
		break;
	case CORE_SSTHRESH:
		s->ssthresh = xcp_ssthresh_after_loss(s->cwnd);
		break;
	case CORE_UNDO:
		s->cwnd = xcp_on_undo(x, s->cwnd, s->prior_cwnd);
		break;
	}
}
