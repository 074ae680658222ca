package ledger

import (
	"cmp"
	"maps"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// valuesOf are the numbers that were known of an attempt before it ran, in the order of the stage's features, of which
// new ones are kept while there is room: as many as sizes are learned by. The bytes of the input are the first.
func (st *stage) valuesOf(e predictor.Record) []float32 {
	if len(st.features) == 0 {
		st.features = []string{usage.InputBytes}
	}
	if len(st.features) < usage.MaxFeatures {
		for _, name := range slices.Sorted(maps.Keys(e.Features)) {
			if len(st.features) < usage.MaxFeatures && len(name) <= usage.MaxFeatureName && name != "" &&
				!usage.IsCategory(name) && !slices.Contains(st.features, name) {
				st.features = append(st.features, name)
			}
		}
	}
	features := usage.Features{Input: float64(e.Usage.Input), Named: e.Features}
	values := make([]float32, len(st.features))
	for i, name := range st.features {
		values[i] = float32(features.Value(name))
	}
	return values
}

// features are those of the run's stages, to be read while these get more.
func (a *account) features() map[*stage][]string {
	of := make(map[*stage][]string, len(a.stages))
	for _, st := range a.stages {
		of[st] = slices.Clip(st.features)
	}
	return of
}

// Hindsight sets what was predicted of the attempts beside what came, of one stage or, where none is named, of all,
// with at most so many points of each. Sizings tell what is known by now of how fast they are.
func (d *Detail) Hindsight(stage string, points int, sizings []predictor.Sizing) []hindsight.Stage {
	known := map[string]hindsight.Known{}
	sized := map[predictor.StageID]predictor.Sizing{}
	for _, sizing := range sizings {
		sized[sizing.Stage] = sizing
	}
	var ended []*attempt
	for i := range d.attempts.count {
		if one := d.attempts.at(i); one.recorded && (stage == "" || stage == one.stage.id.Name) {
			ended = append(ended, one)
		}
	}
	slices.SortStableFunc(ended, func(a, b *attempt) int { return cmp.Compare(a.ended, b.ended) })
	attempts := make([]hindsight.Attempt, len(ended))
	for i, a := range ended {
		m, grant := a.manner.Value(), a.grant.Value()
		if sizing, ok := sized[a.stage.id]; ok {
			known[a.stage.id.Name] = hindsight.Known{Duration: sizing.Duration, Speed: sizing.Speed}
		}
		attempts[i] = hindsight.Attempt{
			Stage: a.stage.id.Name, Venue: m.venue, Outcome: m.outcome, Cause: m.cause,
			Names: d.features[a.stage], Values: a.values,
			PredictedMemory: a.memoryBand.around(float64(a.predictedMemory)),
			PredictedWall:   a.wallBand.around(a.predictedWall),
			Peak:            a.peak, Granted: max(quantity.Bytes(0), grant.Memory), Wall: a.wall.Seconds(),
			Cores: grant.CPU.Cores(),
		}
	}
	return hindsight.Of(attempts, points, known)
}
