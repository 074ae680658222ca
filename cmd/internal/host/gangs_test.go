package host

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// reportedGangs keeps what was reported.
type reportedGangs struct{ told []gang.Told }

func (*reportedGangs) Ask(context.Context, gang.Ask) (gang.Gang, error) { return gang.Gang{}, nil }
func (*reportedGangs) Over(context.Context, string, string) error       { return nil }
func (g *reportedGangs) Report(_ context.Context, r gang.Report) ([]gang.Wanted, error) {
	g.told = append(g.told, r.Gangs...)
	return nil, nil
}

// TestAttackAHostSaysOfItsGangsWhatNoAgentDoes: what all say lies in one document, and adds to what attempts cost.
func TestAttackAHostSaysOfItsGangsWhatNoAgentDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		told   string
		status int
	}{
		"as agents do": {
			`{"id":"r/t/1","phase":"held","address":"10.0.0.1:7","per_hour_picodollars":1}`, http.StatusOK,
		},
		"a long reason": {`{"id":"r/t/1","phase":"ended","why":"` + strings.Repeat("x", 1<<20) + `"}`, http.StatusOK},
		"a long address": {
			`{"id":"r/t/1","phase":"held","address":"` + strings.Repeat("1", 101) + `"}`, http.StatusBadRequest,
		},
		"a long phase":      {`{"id":"r/t/1","phase":"` + strings.Repeat("h", 101) + `"}`, http.StatusBadRequest},
		"a negative price":  {`{"id":"r/t/1","phase":"held","per_hour_picodollars":-1}`, http.StatusBadRequest},
		"too high":          {`{"id":"r/t/1","per_hour_picodollars":9000000000000000000}`, http.StatusBadRequest},
		"no JSON of a gang": {`7`, http.StatusBadRequest},
	} {
		gangs := &reportedGangs{}
		given := func(string, string) (*wire.Given, error) { return nil, nil } //nolint:nilnil // of a version before proofs
		answer := httptest.NewRecorder()
		WithGangs(gangs, given, http.NotFoundHandler(), nil).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(),
			http.MethodPost, reportGangPath, strings.NewReader(`{"host":"a","instance":"1","gangs":[`+c.told+`]}`)))
		if answer.Code != c.status || len(gangs.told) > 0 != (c.status == http.StatusOK) {
			t.Errorf("%s: got %d, told %d; want %d", name, answer.Code, len(gangs.told), c.status)
		}
		for _, one := range gangs.told {
			if len(one.Why) > mostWhy || one.PerHour > quantity.Money(1) {
				t.Errorf("%s: kept a reason of %d bytes and %s per hour", name, len(one.Why), one.PerHour)
			}
		}
	}
}
