/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * An explicit rate for each connection, as an eBPF congestion control.
 *
 * The gateway is the only sender onto its satellite link, so it knows which connections share the link. This
 * program measures each connection: bytes sent, delivered and lost, and its round-trip time. A controller in
 * user space decides (bentpipe_link::explicit), and this program carries out the decision; explicit_core.h
 * has the arithmetic.
 *
 * After a retransmission timeout the kernel sends one segment at a time; the first acknowledgement shows that
 * the path is back, and restores the whole window.
 *
 * Both sides meet in an array of slots, one for each connection, which user space maps into its memory.
 */
#include "kernel.h"
#include "explicit_core.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Slots that are tried for a new connection. */
#define TRIES 64

/* What user space sets for a socket before it connects or listens; accepted sockets inherit it. */
struct membership {
	u32 leg;
	u32 weight;
};

/*
 * A leg, written by the controller: what a connection may send that begins between two of its decisions, and
 * has no rate yet. One of weight w has rate * w / (weight + joined), and its weight is then part of `joined`.
 */
struct leg {
	u64 rate;   /* bytes on the wire per second */
	u64 rtt_us; /* of the empty link, for connections that have not measured it */
	u32 weight; /* of all backlogged connections */
	u32 joined; /* weight of those that have begun since the last decision */
};

/* A connection. The controller writes `rate`, this program everything else. */
struct slot {
	u64 rate;       /* bytes on the wire per second, 0: none yet */
	u64 at_us;      /* when the rest was written, by the clock of tcp_mstamp */
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
	u32 backlogged;     /* there is something to send that only its rate holds back */
	u32 forward_us;     /* see struct explicit_path, as for rtt_us and min_rtt_us */
	u32 reserved;
};

_Static_assert(sizeof(struct slot) == 80 && sizeof(struct leg) == 24, "user space has the same layout");

struct explicit {
	struct explicit_path path;
	u32 slot;   /* number + 1, 0: none */
	u32 leg;
	u32 weight;
	u32 member; /* user space has set which leg it belongs to */
};

_Static_assert(sizeof(struct explicit) <= CORE_STATE_BYTES, "it fits the space for a congestion control");

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

/*
 * The socket that has the slot of the same number, 0: free. A separate array makes it fast to find those in
 * use.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} owners SEC(".maps");

/* How many slots there are. */
const volatile u32 slot_count = 1024;
/* Which argument of cong_control is the rate sample: 1 before Linux 6.10, 3 since. */
const volatile u32 sample_argument = 3;
/* Where the search for a free one begins. */
u32 next_slot;

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
			slot->forward_us = EXPLICIT_UNKNOWN;
			e->slot = key + 1;
			return;
		}
	}
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
	return explicit_initial_rate(leg->rate, e->weight, leg->weight, leg->joined);
}

static void describe(struct explicit_socket *s, const struct sock *sk, const struct explicit *e,
		     const struct slot *slot)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct leg *leg = leg_of(e);

	__builtin_memset(s, 0, sizeof(*s));
	s->rate = rate_of(e, slot);
	s->max_pacing_rate = sk->sk_max_pacing_rate;
	s->empty_rtt_us = leg ? max_u64(leg->rtt_us, 1) : 0;
	s->mss = tp->mss_cache;
	s->header = header_length(sk);
	s->cwnd_clamp = tp->snd_cwnd_clamp;
}

/* The controller has not set its rate yet, and others begin at the same time. */
static bool is_in_crowd(const struct explicit *e, const struct slot *slot)
{
	struct leg *leg = leg_of(e);

	return slot && !slot->rate && leg && leg->joined > e->weight;
}

/* The rate for the next transmission. */
static void pace(struct sock *sk, const struct explicit *e, const struct slot *slot)
{
	struct explicit_socket s;

	describe(&s, sk, e, slot);
	explicit_pace(&e->path, &s);
	/*
	 * After a pause the kernel waits only for half of the time that a segment takes. Of a crowd, all second
	 * segments would come while the first ones are queueing.
	 */
	sk->sk_pacing_rate = is_in_crowd(e, slot) ? max_u64(s.pacing_rate / 2, 1) : s.pacing_rate;
}

/* Rate and window. */
static void obey(struct sock *sk, const struct explicit *e, const struct slot *slot)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct explicit_socket s;

	describe(&s, sk, e, slot);
	explicit_obey(&e->path, &s);
	sk->sk_pacing_rate = s.pacing_rate;
	tp->snd_cwnd = s.cwnd;
}

static void report(const struct sock *sk, const struct explicit *e, struct slot *slot)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	slot->bytes_sent = tp->bytes_sent;
	slot->segments_sent = tp->data_segs_out;
	slot->delivered = tp->delivered;
	slot->lost = tp->lost;
	slot->mss = tp->mss_cache;
	slot->header = header_length(sk);
	slot->in_flight = tp->packets_out;
	slot->rtt_us = e->path.rtt_us;
	slot->min_rtt_us = e->path.shortest_us;
	slot->forward_us = e->path.forward_us;
	slot->window_limited = packets_in_flight(tp) >= tp->snd_cwnd;
	/* The receiver's window has room for a segment, and there is one; or one must be sent again. */
	u32 room = tp->snd_una + tp->snd_wnd - tp->snd_nxt;
	slot->backlogged = (tp->write_seq != tp->snd_nxt && (s64)(int)room >= tp->mss_cache) ||
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
	explicit_on_init(&e->path);
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
	explicit_on_sample(&e->path, tp->tcp_mstamp, tp->srtt_us >> 3, 0);
	if (slot)
		report(sk, e, slot);
	obey(sk, e, slot);
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

static __always_inline void on_ack(struct sock *sk, const struct rate_sample *rs)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct explicit *e = tcp_private(sk);
	struct slot *slot = slot_of(e);

	u32 rtt_us = rs->rtt_us > 0 ? rs->rtt_us : 0;
	explicit_on_sample(&e->path, tp->tcp_mstamp, rtt_us, tp->rx_opt.rcv_tsval);
	if (slot)
		report(sk, e, slot);
	obey(sk, e, slot);
}

/* The arguments as an array, so that one program fits both forms; the verifier follows only this kernel's. */
SEC("struct_ops")
void explicit_cong_control(unsigned long long *arguments)
{
	const struct rate_sample *rs;

	/* From C the compiler makes one load from an address that varies, which the verifier refuses. */
	if (sample_argument == 1)
		asm volatile("%0 = *(u64 *)(%1 + 8)" : "=r"(rs) : "r"(arguments));
	else
		asm volatile("%0 = *(u64 *)(%1 + 24)" : "=r"(rs) : "r"(arguments));
	on_ack((void *)arguments[0], rs);
}

/* Data after a pause: the controller must learn of it before the first acknowledgement. */
SEC("struct_ops")
void BPF_PROG(explicit_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct explicit *e = tcp_private(sk);
	struct slot *slot = slot_of(e);

	if (event != CA_EVENT_TX_START || !slot || slot->in_flight)
		return;
	/* The controller takes back the rate of a connection that has been silent. */
	if (!slot->rate) {
		struct leg *leg = leg_of(e);

		if (leg)
			__sync_fetch_and_add(&leg->joined, e->weight);
	}
	report(sk, e, slot);
	slot->in_flight = 1;
	obey(sk, e, slot);
	pace(sk, e, slot);
}

/*
 * The kernel asks before each transmission how many segments are to leave together at least. That is the
 * moment to take a new rate: a connection that began with others may have to wait a round trip for its first
 * acknowledgement. The window is left alone, which after a retransmission timeout is the kernel's.
 */
SEC("struct_ops")
u32 BPF_PROG(explicit_min_tso_segs, struct sock *sk)
{
	struct explicit *e = tcp_private(sk);
	struct slot *slot = slot_of(e);

	pace(sk, e, slot);
	/* Before its handshake is complete the kernel does not wake it: the relay does, now and then. */
	if (sk->__sk_common.skc_state == TCP_SYN_RECV)
		return explicit_segments_in(sk->sk_pacing_rate, tcp_sk(sk)->mss_cache, EXPLICIT_PUSHED_US);
	return is_in_crowd(e, slot) ? 1 : explicit_burst(sk->sk_pacing_rate, tcp_sk(sk)->mss_cache);
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

/* A window in flight, another that waits behind a hole for its retransmission, and one to send meanwhile. */
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
	.min_tso_segs = (void *)explicit_min_tso_segs,
	.ssthresh = (void *)explicit_ssthresh,
	.undo_cwnd = (void *)explicit_undo_cwnd,
	.sndbuf_expand = (void *)explicit_sndbuf_expand,
	.name = "bp_explicit",
};
