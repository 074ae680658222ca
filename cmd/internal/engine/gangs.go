package engine

import (
	"net/http"

	"github.com/spillway-ml/spillway/cmd/internal/host"
)

// hostsHandler answers what hosts elsewhere ask, and which of them run an attempt together.
func (e *Engine) hostsHandler() http.Handler {
	return host.WithGangs(e.gangs, e.front.hostsHandler(), e.logger)
}
