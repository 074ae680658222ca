package engine

import (
	"net/http"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// hostsHandler answers what hosts elsewhere ask, and which of them run an attempt together.
func (e *Engine) hostsHandler() http.Handler { return e.front.answersHosts().WithGangs(e.gangs) }

// proveGang returns what makes the proofs of the hosts of a gang.
func proveGang(keys *access.Keys) func(string, []byte, bool, []predictor.HostShare) string {
	return func(name string, text []byte, member bool, others []predictor.HostShare) string {
		given, err := wire.DecodeGiven(text)
		if err != nil { // of a host of a version before proofs, which shows none
			return ""
		}
		given.Member, given.Members = member, others
		return keys.ProveGiven(name, given.Encode())
	}
}
