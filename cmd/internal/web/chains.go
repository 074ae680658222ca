package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// mostStages bounds the stages of a chain, as its reader does.
const mostStages = 200

// chainShape is the part of an encoded chain that the description of the API shows; the rest is what a chain's file
// says.
type chainShape struct {
	Name   string       `json:"name"`
	Stages []stageShape `json:"stages"`
}

type stageShape struct {
	Name   string `json:"name"`
	Script string `json:"script,omitempty"`
}

// registerChain serves a chain whose files are packed. The client has read it from a file and checked it; it is checked
// again in the same way, because what is sent need not come from our client.
func (s *Server) registerChain(r *http.Request) (App, error) {
	const hint = "send what `spillway run FILE.yaml` sends"
	body, err := io.ReadAll(r.Body)
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return App{}, tooLarge
	}
	if err != nil {
		return App{}, Invalid(hint, "the body breaks off: %v", err)
	}
	var c chain.Chain
	if err := json.Unmarshal(body, &c); err != nil {
		return App{}, Invalid(hint, "the body is no chain: %s", wrongIn(err))
	}
	if err := c.Validate(chain.Checks{Binding: trigger.Check}); err != nil {
		return App{}, Invalid(hint, "the chain cannot run: %s", firstProblem(err))
	}
	if err := s.ownPipeline(r, c.Name()); err != nil {
		return App{}, err
	}
	return s.engine.RegisterChain(r.Context(), c)
}

// firstProblem is one thing that is wrong with a chain, and how many more there are.
func firstProblem(err error) string {
	wrong, ok := errors.AsType[*chain.Error](err)
	if !ok {
		return err.Error()
	}
	first := wrong.Problems[0].String()
	if more := len(wrong.Problems) - 1; more > 0 {
		first += fmt.Sprintf(" (and %d more)", more)
	}
	return first
}
