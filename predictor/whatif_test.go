package predictor_test

import (
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

func dear(now float64, cores int) predictor.Snapshot {
	snap := laptop(now, cores)
	snap.Hosts[0].PricePerHour = quantity.USD * 17 / 100
	return snap
}

func TestX(t *testing.T) {
	state := scoring(predictor.Goal{}, 400, 2)
	begin := time.Now()
	a := whatif.Of(state.Prospect("r", predictor.Goal{Deadline: 2 * time.Minute}, dear(10, 4)))
	t.Log(time.Since(begin))
	for _, p := range a.Points {
		t.Logf("%.4g s $%.4g %.3g %s", p.Seconds, p.Cost, p.InTime, p.Gets())
	}
	t.Logf("present %+v", a.Present)
	for _, s := range a.Sentences {
		t.Log(s)
	}
	a = whatif.Of(state.ProspectOf(predictor.Coming{App: "app", Pipeline: "p"},
		predictor.Goal{Budget: quantity.USD / 10000}, dear(10, 4)))
	for _, s := range a.Sentences {
		t.Log(s)
	}
}
