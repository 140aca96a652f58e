/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * An explicit rate for each connection, as an eBPF congestion control.
 *
 * The gateway is the only sender onto its satellite link, so that it knows what shares it. This program measures: what a
 * connection has sent, what has arrived, what was lost, how long a round trip takes. A controller in user space decides
 * (bentpipe_link::explicit), and this program carries it out:
 *
 *     pacing rate = the payload's part of the rate that the controller has written
 *     W           = rate * (RTT + a quarter + 20 ms), the RTT at most twice the shortest and what acknowledgements
 *                   wait on their way back
 *
 * A loss changes nothing: it says that a segment must be sent again, not that the rate was wrong. After a retransmission
 * timeout the kernel sends one segment at a time; the first acknowledgement says that the path is back, and the whole
 * window with it.
 *
 * Both sides meet in one array of slots, a slot for a connection, which user space has in its memory.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define USEC_PER_SEC 1000000ULL

/* The window without a rate, segments (RFC 6928). */
#define STANDARD_WINDOW 10
/* An upper bound for the window that no arithmetic below can overflow. */
#define WINDOW_MAX (1U << 24)
/* Slots that are tried for a new connection. */
#define TRIES 64
/* The shortest round trip is of the last 15 to 30 seconds: a path may have become longer. */
#define MIN_RTT_EPOCH_US (15 * USEC_PER_SEC)
/* The round trip that is reported is the shortest of so long: a delayed acknowledgement makes single ones long. */
#define RECENT_US 50000

/* Receivers' clocks that count milliseconds differ from ours by less than this part of what passes. */
#define TICKS 16
/* Nothing is known of the way to the receiver alone. */
#define UNKNOWN (~0U)

/* What user space says of a socket before it connects or listens; accepted sockets get a copy. */
struct membership {
	u32 leg;
	u32 weight;
};

/*
 * A leg, written by the controller: what connections without a rate may have, which begin between two of its decisions. One
 * of weight w has rate * w / (weight + joined), and is then one of those that have joined.
 */
struct leg {
	u64 rate;   /* bytes on the wire per second */
	u64 rtt_us; /* of the empty link, until it is measured */
	u32 weight; /* of all that would have more */
	u32 joined; /* weight of those that have begun since the last decision */
};

/* A connection. The controller writes `rate`, this program all else. */
struct slot {
	u64 rate;       /* bytes on the wire per second, 0: none yet */
	u64 at_us;      /* when the following was written, by the clock of tcp_mstamp */
	u64 bytes_sent; /* payload, retransmissions included */
	u32 segments_sent;
	u32 delivered;  /* segments that have arrived */
	u32 lost;       /* segments that were declared lost */
	u32 mss;
	u32 header;     /* bytes of IP and TCP in front of a payload */
	u32 in_flight;  /* segments sent and not acknowledged */
	u32 rtt_us;     /* shortest of the last 50 ms or more */
	u32 min_rtt_us; /* shortest of the last 15 to 30 s */
	u32 leg;
	u32 weight;
	u32 window_limited; /* the window, not the pacing, holds it back */
	u32 hungry;         /* there is something to send that its rate alone holds back */
	u32 forward_us;     /* by how much the way to the receiver is longer than the shortest of the last 15 to 30 s */
	u32 reserved;
};

_Static_assert(sizeof(struct slot) == 80 && sizeof(struct leg) == 24, "user space counts on it");

struct explicit {
	u64 epoch_us;     /* when the next epoch of the shortest round trip begins */
	u64 recent_us;    /* when the next `recent` begins */
	u32 slot;         /* number + 1, 0: none */
	u32 leg;
	u32 weight;
	u32 min_rtt_us;   /* of this epoch */
	u32 before_us;    /* of the epoch before */
	u32 recent_rtt_us; /* of this `recent`, 0: none */
	u32 member;       /* user space has said which leg it belongs to */
	/* The way to the receiver by two clocks: right but for their difference, modulo 2^32, and odd; 0: none. */
	u32 min_forward_us;    /* of this epoch */
	u32 forward_before_us; /* of the epoch before */
	u32 recent_forward_us; /* of this `recent` */
	u32 first_age_us;      /* of the first acknowledgement */
	u64 first_us;          /* when that came, 0: none yet */
};

_Static_assert(sizeof(struct explicit) <= 104, "the kernel keeps 104 bytes for a congestion control");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct membership);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, struct leg);
} legs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* The socket that has the slot of the same number, 0: free. Beside the slots, for whoever looks for those that are taken. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} owners SEC(".maps");

/* How many slots there are. */
const volatile u32 slot_count = 1024;
/* Where the search for a free one begins. */
u32 next_slot;

static inline u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

static struct slot *slot_of(const struct explicit *e)
{
	u32 key = e->slot - 1;

	return e->slot ? bpf_map_lookup_elem(&slots, &key) : NULL;
}

static struct leg *leg_of(const struct explicit *e)
{
	u32 key = e->leg;

	return bpf_map_lookup_elem(&legs, &key);
}

static void take_slot(struct sock *sk, struct explicit *e)
{
	u32 start = __sync_fetch_and_add(&next_slot, 1);

	for (u32 i = 0; i < TRIES; i++) {
		u32 key = (start + i) % max_u64(slot_count, 1);
		struct slot *slot = bpf_map_lookup_elem(&slots, &key);
		u64 *owner = bpf_map_lookup_elem(&owners, &key);

		if (!slot || !owner)
			return;
		if (__sync_val_compare_and_swap(owner, 0, (u64)sk) == 0) {
			__builtin_memset(slot, 0, sizeof(*slot));
			slot->forward_us = UNKNOWN;
			e->slot = key + 1;
			return;
		}
	}
}

static u32 header_length(const struct sock *sk, const struct tcp_sock *tp)
{
	return tp->tcp_header_len + (sk->__sk_common.skc_family == AF_INET6 ? 40 : 20);
}

/* The shortest round trip that is known, that of the empty link before there is one. */
static u64 shortest_rtt_us(const struct explicit *e)
{
	u32 measured = min_u64(e->min_rtt_us - 1U, e->before_us - 1U) + 1U; /* 0: none, the largest */

	if (measured)
		return measured;
	struct leg *leg = leg_of(e);
	return leg ? max_u64(leg->rtt_us, 1) : 100000;
}

static u64 rate_of(const struct explicit *e, const struct slot *slot)
{
	if (!e->member)
		return 0;
	if (slot && slot->rate)
		return slot->rate;
	struct leg *leg = leg_of(e);
	if (!leg)
		return 0;
	return leg->rate * e->weight / max_u64(leg->weight + max_u64(leg->joined, e->weight), 1);
}

/* Rate and window. */
static void obey(struct sock *sk, struct tcp_sock *tp, const struct explicit *e, const struct slot *slot)
{
	u64 shortest_us = shortest_rtt_us(e);
	/*
	 * With the queue, up to twice the shortest: that is for the rate to answer, and the path may have become longer. What
	 * acknowledgements wait on their way back no rate can answer, and it counts in full.
	 */
	u64 recent_us = max_u64(slot ? slot->rtt_us : 0, shortest_us);
	u64 beyond_us = recent_us - shortest_us;
	u64 queue_us = min_u64(min_u64(slot ? slot->forward_us : 0, beyond_us), shortest_us);
	u64 back_us = slot && slot->forward_us != UNKNOWN ? beyond_us - min_u64(slot->forward_us, beyond_us) : 0;
	u64 rtt_us = shortest_us + queue_us + back_us;
	u64 mss = max_u64(tp->mss_cache, 1);
	u64 rate = rate_of(e, slot) * mss / (mss + header_length(sk, tp));

	if (!rate) /* Nobody shares out this link, or not yet. */
		rate = STANDARD_WINDOW * mss * USEC_PER_SEC / rtt_us;
	rate = max_u64(min_u64(rate, sk->sk_max_pacing_rate), 1);
	sk->sk_pacing_rate = rate;
	/* A quarter for acknowledgements that come late, and 20 ms for the scheduling of this and other hosts. */
	u64 window = rate * (rtt_us + rtt_us / 4 + 20000) / USEC_PER_SEC / mss + 4;
	window = min_u64(min_u64(window, WINDOW_MAX), tp->snd_cwnd_clamp);
	tp->snd_cwnd = max_u64(window, 1);
}

static u32 shorter_way(u32 a, u32 b)
{
	if (!a || !b)
		return a | b;
	return (s32)(a - b) < 0 ? a : b;
}

/* What has come was sent by a clock that shows `timestamp`, and answers what was sent `rtt_us` ago by ours (RFC 6817 3.4.1). */
static void follow_way(struct explicit *e, u64 now_us, u32 rtt_us, u32 timestamp)
{
	u32 age_us = (u32)now_us - timestamp * 1000;

	if (!timestamp)
		return;
	if (!e->first_us) {
		e->first_us = now_us;
		e->first_age_us = age_us;
	}
	/* Acknowledgements can wait for a round trip at most. By more than that, the receiver's clock has other ticks. */
	s32 differs = age_us - e->first_age_us;
	u64 most = rtt_us + (now_us - e->first_us) / TICKS;
	if ((u64)(differs < 0 ? -(s64)differs : differs) > most) {
		e->min_forward_us = e->forward_before_us = e->recent_forward_us = 0;
		return;
	}
	u32 forward_us = (rtt_us - age_us) | 1;
	e->min_forward_us = shorter_way(e->min_forward_us, forward_us);
	e->recent_forward_us = shorter_way(e->recent_forward_us, forward_us);
}

static u32 forward_of(const struct explicit *e)
{
	u32 least = shorter_way(e->min_forward_us, e->forward_before_us);

	return e->recent_forward_us ? e->recent_forward_us - least : UNKNOWN;
}

static void follow_rtt(struct explicit *e, struct slot *slot, u64 now_us, s64 rtt_us, u32 timestamp)
{
	if (rtt_us <= 0)
		return;
	if (now_us >= e->epoch_us) {
		e->before_us = e->min_rtt_us;
		e->forward_before_us = e->min_forward_us;
		e->min_rtt_us = e->min_forward_us = 0;
		e->epoch_us = now_us + MIN_RTT_EPOCH_US;
	}
	if (!e->min_rtt_us || rtt_us < e->min_rtt_us)
		e->min_rtt_us = rtt_us;
	if (!e->recent_rtt_us || rtt_us < e->recent_rtt_us)
		e->recent_rtt_us = rtt_us;
	follow_way(e, now_us, rtt_us, timestamp);
	if (slot && now_us >= e->recent_us) {
		slot->rtt_us = e->recent_rtt_us;
		slot->min_rtt_us = shortest_rtt_us(e);
		slot->forward_us = forward_of(e);
		e->recent_rtt_us = e->recent_forward_us = 0;
		e->recent_us = now_us + RECENT_US;
	}
}

static void report(const struct sock *sk, const struct tcp_sock *tp, const struct explicit *e, struct slot *slot)
{
	slot->bytes_sent = tp->bytes_sent;
	slot->segments_sent = tp->data_segs_out;
	slot->delivered = tp->delivered;
	slot->lost = tp->lost;
	slot->mss = tp->mss_cache;
	slot->header = header_length(sk, tp);
	slot->in_flight = tp->packets_out;
	slot->window_limited = packets_in_flight(tp) >= tp->snd_cwnd;
	/* The receiver's window has room for a segment, and there is one; or one is to be sent again. */
	u32 room = tp->snd_una + tp->snd_wnd - tp->snd_nxt;
	slot->hungry = (tp->write_seq != tp->snd_nxt && (s64)(int)room >= tp->mss_cache) ||
		       tp->lost_out > tp->retrans_out;
	slot->leg = e->leg;
	slot->weight = e->weight;
	slot->at_us = tp->tcp_mstamp;
}

SEC("struct_ops")
void BPF_PROG(explicit_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct explicit *e = tcp_private(sk);
	struct membership *member = bpf_sk_storage_get(&members, sk, 0, 0);

	__builtin_memset(e, 0, sizeof(*e));
	e->weight = 1;
	if (member) {
		e->leg = member->leg;
		e->weight = member->weight;
		e->member = 1;
		take_slot(sk, e);
	}
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	struct slot *slot = slot_of(e);
	/* The handshake has measured the round trip, unless its SYN was repeated. */
	follow_rtt(e, slot, tp->tcp_mstamp, tp->srtt_us >> 3, 0);
	if (slot)
		report(sk, tp, e, slot);
	obey(sk, tp, e, slot);
}

SEC("struct_ops")
void BPF_PROG(explicit_release, struct sock *sk)
{
	struct explicit *e = tcp_private(sk);
	u32 key = e->slot - 1;
	u64 *owner = e->slot ? bpf_map_lookup_elem(&owners, &key) : NULL;

	if (owner)
		*owner = 0;
	e->slot = 0;
}

SEC("struct_ops")
void BPF_PROG(explicit_cong_control, struct sock *sk, u32 ack, int flag, const struct rate_sample *rs)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct explicit *e = tcp_private(sk);
	struct slot *slot = slot_of(e);

	follow_rtt(e, slot, tp->tcp_mstamp, rs->rtt_us, tp->rx_opt.rcv_tsval);
	if (slot)
		report(sk, tp, e, slot);
	obey(sk, tp, e, slot);
}

/* Data after a pause: the controller must know of it before the first acknowledgement. */
SEC("struct_ops")
void BPF_PROG(explicit_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct explicit *e = tcp_private(sk);
	struct slot *slot = slot_of(e);

	if (event != CA_EVENT_TX_START || !slot || slot->in_flight)
		return;
	/* The controller takes back the rate of who has been silent. */
	if (!slot->rate) {
		struct leg *leg = leg_of(e);

		if (leg)
			__sync_fetch_and_add(&leg->joined, e->weight);
		slot->rate = rate_of(e, slot);
	}
	report(sk, tp, e, slot);
	slot->in_flight = 1;
	obey(sk, tp, e, slot);
}

/* A loss is no reason to send less. */
SEC("struct_ops")
u32 BPF_PROG(explicit_ssthresh, struct sock *sk)
{
	return TCP_INFINITE_SSTHRESH;
}

SEC("struct_ops")
u32 BPF_PROG(explicit_undo_cwnd, struct sock *sk)
{
	return tcp_sk(sk)->snd_cwnd;
}

/* A window on its way, another that waits behind a hole for its retransmission, and one to send meanwhile. */
SEC("struct_ops")
u32 BPF_PROG(explicit_sndbuf_expand, struct sock *sk)
{
	return 3;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops bp_explicit = {
	.init = (void *)explicit_init,
	.release = (void *)explicit_release,
	.cong_control = (void *)explicit_cong_control,
	.cwnd_event = (void *)explicit_cwnd_event,
	.ssthresh = (void *)explicit_ssthresh,
	.undo_cwnd = (void *)explicit_undo_cwnd,
	.sndbuf_expand = (void *)explicit_sndbuf_expand,
	.name = "bp_explicit",
};
