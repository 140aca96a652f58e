/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The cores as functions that Rust can call. */
#include "aqm_core.h"
#include "explicit_core.h"
#include "hybla_core.h"
#include "xcp_core.h"

void bentpipe_hybla_step(struct hybla *state, struct hybla_socket *socket,
			 const struct hybla_parameters *parameters)
{
	hybla_step(state, socket, parameters);
}

void bentpipe_explicit_step(struct explicit_path *state, struct explicit_socket *socket)
{
	explicit_step(state, socket);
}

void bentpipe_xcp_step(struct xcp *state, struct xcp_socket *socket)
{
	xcp_step(state, socket);
}

void bentpipe_aqm_step(struct aqm *state, struct aqm_packet *packet)
{
	aqm_step(state, packet);
}
