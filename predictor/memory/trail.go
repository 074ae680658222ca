package memory

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/curve"
	"github.com/spillway-ml/spillway/predictor/fact"
)

// Bounds of what is remembered of trainings: in a checkpoint eleven bytes for each point.
const (
	// mostTrailed is how many points a task that runs has at most, and leastTrailed how many however many tasks run;
	// allTrailed is about how many all have together.
	mostTrailed  = curve.MostTrail
	leastTrailed = 16 // what curve.Trail keeps at least
	allTrailed   = 1 << 15
	// maxTrails is how many tasks are followed at a time.
	maxTrails = 2048
	// mostCurves are the curves of a stage that are kept, each of at most mostCurved points, and allCurved how many points
	// those of all stages have.
	mostCurves = 32
	mostCurved = 64
	allCurved  = 1 << 16
	// fewestCurved is how many points the curve of an ended task has at least that is kept: less has no shape.
	fewestCurved = 3
)

// points are those of a curve, each number as single precision has it: what is read again from a checkpoint is what
// was remembered.
type points []curve.Point

// round gives each number the precision that a checkpoint keeps. Steps that are the same then are one, the latest.
func (p *points) round() {
	kept := (*p)[:0]
	for _, point := range *p {
		point = curve.Point{Step: float64(float32(point.Step)), Value: float64(float32(point.Value))}
		if n := len(kept); n > 0 && kept[n-1].Step == point.Step {
			kept = kept[:n-1]
		}
		kept = append(kept, point)
	}
	*p = kept
}

// MarshalJSON is the text of the little-endian bytes of step and value of each.
func (p points) MarshalJSON() ([]byte, error) {
	encoded := make([]byte, 0, 8*len(p))
	for _, point := range p {
		encoded = binary.LittleEndian.AppendUint32(encoded, math.Float32bits(float32(point.Step)))
		encoded = binary.LittleEndian.AppendUint32(encoded, math.Float32bits(float32(point.Value)))
	}
	return json.Marshal(encoded)
}

// UnmarshalJSON reads what MarshalJSON wrote; points whose steps do not rise are refused.
func (p *points) UnmarshalJSON(data []byte) error {
	var encoded []byte
	if err := json.Unmarshal(data, &encoded); err != nil {
		return err
	}
	if len(encoded)%8 != 0 || len(encoded) > 8*mostTrailed {
		return errors.New("the points of a curve are damaged")
	}
	var read points
	for at := 0; at < len(encoded); at += 8 {
		point := curve.Point{
			Step:  float64(math.Float32frombits(binary.LittleEndian.Uint32(encoded[at:]))),
			Value: float64(math.Float32frombits(binary.LittleEndian.Uint32(encoded[at+4:]))),
		}
		if !(point.Step > 0) || math.IsInf(point.Step, 0) || at > 0 && point.Step <= read[len(read)-1].Step {
			return errors.New("the steps of a curve do not rise")
		}
		read = append(read, point)
	}
	*p = read
	return nil
}

// Trail is how one metric of a task that runs has gone, over all of its attempts.
type Trail struct {
	Stage  fact.StageID `json:"stage"`
	Run    string       `json:"run"`
	Task   string       `json:"task"`
	Metric string       `json:"metric"`
	// Attempt is the attempt that told the latest point.
	Attempt int    `json:"attempt"`
	Points  points `json:"points"`

	fit *Fit // the latest; nil before the first, and after a checkpoint
	// changed says that there are points that the fit does not have, and turn is the turn in which it waits for that.
	changed bool
	turn    uint64
}

// Curve is how a metric went in a task of a stage that has succeeded.
type Curve struct {
	Metric string `json:"metric"`
	Points points `json:"points"`
}

// report is what an attempt tells of its training: a step, and at its end a curve.
type report struct {
	run, task string
	stage     fact.StageID
	attempt   int
	step      int
	metrics   map[string]float64
	notFinite []string
	curve     *fact.Curve
}

// trail takes in what an attempt reports of its training.
func (m *State) trail(r report) {
	if len(r.metrics) == 0 && len(r.notFinite) == 0 && r.curve == nil {
		return
	}
	key := taskKey(r.run, r.task)
	t := m.trails[key]
	if t == nil {
		if m.Runs[r.run] == nil || len(r.task) > maxTask || len(m.trails) >= maxTrails {
			return
		}
		t = &Trail{Stage: r.stage, Run: r.run, Task: r.task}
	}
	most := max(leastTrailed, min(mostTrailed, allTrailed/max(1, len(m.trails))))
	told := curve.Trail{Metric: t.Metric, Points: t.Points}
	changed := r.curve != nil && told.Follow(*r.curve, most)
	if !told.Tell(r.step, r.metrics, r.notFinite, most) && !changed || len(told.Metric) > maxTask {
		return
	}
	if !t.changed {
		m.turns++
		t.turn = m.turns
	}
	t.Metric, t.Points, t.Attempt, t.changed = told.Metric, told.Points, r.attempt, true
	t.Points.round()
	m.trails[key] = t
}

// Reached is the latest step, with its value, NaN where that was not finite, and the best value.
func (t *Trail) Reached() (step, value, best float64) {
	direction, _ := curve.DirectionOf(t.Metric)
	best = math.NaN()
	for _, point := range t.Points {
		better := point.Value < best
		if direction == curve.Maximise {
			better = point.Value > best
		}
		if better || math.IsNaN(best) {
			best = point.Value
		}
	}
	last := t.Points[len(t.Points)-1]
	return last.Step, last.Value, best
}

// taskKey is the key of all attempts of a task together; those of one count from 1.
func taskKey(run, task string) uint64 { return attemptKey(run, task, 0) }

// trailed forgets how a task went that has ended, and keeps its curve where it has succeeded.
func (m *State) trailed(st *Stage, e fact.Record) {
	key := taskKey(e.Run, e.Task)
	t := m.trails[key]
	if t == nil {
		return
	}
	switch {
	case e.Outcome == fact.Succeeded:
		if len(t.Points) >= fewestCurved {
			direction, _ := curve.DirectionOf(t.Metric)
			kept := slices.Clone(curve.Thinned(t.Points, mostCurved, direction))
			m.keepCurve(st.Model, Curve{Metric: t.Metric, Points: kept})
		}
	case e.Outcome == fact.Cancelled, e.Next == fact.NextNothing:
	default:
		return // another attempt goes on
	}
	delete(m.trails, key)
}

// keepCurve keeps the curve of a task that has ended. Where those of all stages have too many points, the stages that
// were active longest ago lose theirs.
func (m *State) keepCurve(known *Model, ended Curve) {
	known.Curves = append(slices.Clone(known.Curves[max(0, len(known.Curves)-mostCurves+1):]), ended)
	known.workload = nil
	m.curved += len(ended.Points)
	if m.curved <= allCurved {
		return
	}
	m.countCurved()
	for m.curved > allCurved {
		var oldest *Model
		for _, other := range m.models {
			if len(other.Curves) > 0 && other != known && (oldest == nil ||
				cmp.Or(cmp.Compare(other.Active, oldest.Active), cmp.Compare(other.Name, oldest.Name)) < 0) {
				oldest = other
			}
		}
		if oldest == nil {
			return
		}
		oldest.Curves, oldest.workload = nil, nil
		m.countCurved()
	}
}

// lightenTrainings forgets how tasks train, and returns of how many that run or stages it knew that.
func (m *State) lightenTrainings() (forgotten int) {
	forgotten = len(m.trails)
	m.trails, m.curved = map[uint64]*Trail{}, 0
	for _, known := range m.models {
		if len(known.Curves) > 0 {
			known.Curves, known.workload = nil, nil
			forgotten++
		}
	}
	return forgotten
}

// trailing goes on with what a checkpoint has of how tasks train.
func (m *State) trailing(saved []*Trail) {
	for _, v := range saved {
		if v != nil && len(v.Points) > 0 && m.Runs[v.Run] != nil {
			v.changed = true
			m.trails[taskKey(v.Run, v.Task)] = v
		}
	}
	m.countCurved()
}

// countCurved counts the points of all curves.
func (m *State) countCurved() {
	m.curved = 0
	for _, known := range m.models {
		for _, one := range known.Curves {
			m.curved += len(one.Points)
		}
	}
}
