/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Both ends of XCP use TCP options of kind 254 with an experiment's number behind the length (RFC 6994),
 * big-endian:
 *
 *     length  4   on SYN and SYN-ACK: XCP is offered, is taken
 *     length 16   on segments with data: round-trip time, us; X = RTT / cwnd, ns; feedback, bytes per second
 *     length  8   on others: the sum of all the feedback received, bytes per second, modulo 2^32
 *
 * The sum, where XCP itself returns each feedback: an acknowledgement that is lost, or that has no room for
 * it, takes nothing with it.
 */
#pragma once

#define XCP_KIND 254
#define XCP_EXPERIMENT_HIGH 0x42
#define XCP_EXPERIMENT_LOW 0x50
#define XCP_OFFER 4
#define XCP_TOTAL 8
#define XCP_REQUEST 16
