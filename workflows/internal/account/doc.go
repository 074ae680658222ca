// Package account keeps the money of a run: what it has spent, what is reserved for tasks in flight, and what its
// parts hold.
//
// It is pure: values and functions, no workflow, no clock. The workflow of a run has an Account with the limit of its
// goal; each part of a run (a child workflow of a Map) has one that lives on blocks of the run's money. They tell
// each other of money by two messages, Block and Report, whose amounts are sums since the beginning: a message that
// comes late, twice or out of order changes nothing that a later one said.
//
// The rule: no task starts, no reservation grows and no block is handed out unless what is spent, what is reserved
// and the blocks together stay within the limit that is in force then.
package account
