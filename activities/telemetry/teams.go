package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-ml/spillway/predictor"
)

// teamGauges show how teams stand in the plan in force, each by its team.
type teamGauges struct {
	slots, mostSlots, waiting, spent, mostSpent *prometheus.GaugeVec
}

// apply shows the teams of a plan, and no others.
func (g teamGauges) apply(teams []predictor.TeamRow) {
	for _, gauge := range []*prometheus.GaugeVec{g.slots, g.mostSlots, g.waiting, g.spent, g.mostSpent} {
		gauge.Reset()
	}
	for _, team := range teams {
		name := predictor.TeamName(team.Name)
		g.slots.WithLabelValues(name).Set(float64(team.Held))
		g.mostSlots.WithLabelValues(name).Set(float64(team.Slots))
		g.waiting.WithLabelValues(name).Set(float64(team.Waiting))
		g.spent.WithLabelValues(name).Set(team.Spent.USD())
		g.mostSpent.WithLabelValues(name).Set(team.PerDay.USD())
	}
}
