package predictor

import (
	"cmp"
	"math"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// Measured is what the attempts of a stage have shown, whatever its build, for comparing where it runs.
type Measured struct {
	// Stage is app and stage: "digits/score".
	Stage string `json:"stage"`
	// Walls are the seconds that the latest attempts took, at most 32, as they would be with the cores of Size. AtPool and
	// AtFunctions are how many were measured there: where none was at the pool, Walls are those at functions, brought to
	// its cores.
	Walls       []float64 `json:"walls_seconds"`
	AtPool      int       `json:"measured_at_pool"`
	AtFunctions int       `json:"measured_at_functions"`
	// Size is that of a slot.
	Size quantity.Size `json:"size"`
	// Class is the memory class of its functions, 0 where they cannot run it, and Refusal why. Slower is by what factor a
	// task takes longer there, Cold how many seconds an environment starts, and Colds how many of these were measured.
	Class   quantity.Bytes  `json:"class_bytes"`
	Refusal string          `json:"refusal,omitempty"`
	Slower  float64         `json:"slower"`
	Cold    float64         `json:"cold_seconds"`
	Colds   int             `json:"measured_colds"`
	Venue   venue.Functions `json:"functions"`
	// Host is the kind of host with a price whose slots cost least, Slots how many it has room for; no name where none of
	// the pool has a price and room.
	Host  plan.Host `json:"host"`
	Slots int       `json:"slots"`
	// Rate is how many tasks came in a second of the latest minutes, at most an hour; 0 where that is not known.
	Rate float64 `json:"tasks_per_second"`
	// LatelyTasks came in LatelyMinutes: what Rate rests on.
	LatelyTasks   int `json:"lately_tasks"`
	LatelyMinutes int `json:"lately_minutes"`
}

// Measured returns what is measured of a stage, named as "stage" or "app/stage". Where there is no stage of the name,
// or several apps have one, found is false, and names are those that were meant or that there are.
func (s State) Measured(name string, snapshot plan.Snapshot) (measured Measured, names []string, found bool) {
	if s.memory == nil {
		return Measured{}, nil, false
	}
	m := s.memory.Copied()
	var models []*memory.Model
	for _, model := range m.Models() {
		names = append(names, model.Name)
		if model.Name == name || strings.HasSuffix(model.Name, "/"+name) {
			models = append(models, model)
		}
	}
	if len(models) > 1 {
		names = nil
		for _, model := range models {
			names = append(names, model.Name)
		}
	}
	if len(models) != 1 {
		return Measured{}, names, false
	}
	st := m.StageOf(models[0])
	if st == nil {
		return Measured{Stage: models[0].Name, Walls: []float64{}}, nil, true
	}
	d := begin(m, snapshot)
	return d.measure(d.known(st)), nil, true
}

// known is a stage, whether it has work or not, with the size of its slots.
func (d *decider) known(st *memory.Stage) *work {
	w := d.newWork(st)
	w.size = st.Slot
	w.size.CPU = cmp.Or(w.size.CPU, st.Declared.CPU, quantity.Core)
	if w.size.Memory == 0 {
		peak := st.Model.Memory.LargestPeak() * (1 + d.policy.Margin)
		w.size.Memory = max(d.policy.MinMemory, st.Declared.Memory, quantity.Bytes(min(peak, float64(fact.MaxPeakMemory))))
	}
	d.time(w, w.size.CPU)
	return w
}

func (d *decider) measure(w *work) Measured {
	model := w.stage.Model
	atPool := model.Times(fact.Pool, w.size.CPU.Cores())
	measured := Measured{
		Stage: model.Name, Size: w.size, Walls: append([]float64{}, atPool.Values...), AtPool: len(atPool.Values),
		Venue: d.functions, Cold: d.functions.ColdStart.Seconds(), Slower: 1,
	}
	measured.Rate = d.memory.Rate(model.Name)
	measured.LatelyTasks, measured.LatelyMinutes = d.memory.Lately(model.Name)
	if colds := model.Colds[fact.Function]; len(colds.Values) > 0 {
		measured.Cold, _ = colds.Mean()
		measured.Colds = len(colds.Values)
	}
	d.offered(w, &measured)
	measured.Host, measured.Slots = d.cheapest(w.size)
	return measured
}

// offered fills in what functions make of the stage.
func (d *decider) offered(w *work, measured *Measured) {
	model := w.stage.Model
	all := model.Walls[fact.Function]
	measured.AtFunctions = len(all.Values)
	atPool := model.Times(fact.Pool, w.size.CPU.Cores())
	wall, _ := atPool.Mean()
	longest := atPool.Quantile(0.99)
	if len(atPool.Values) == 0 {
		if len(all.Values) == 0 {
			return
		}
		wall, _ = all.Mean()
		longest = all.Quantile(0.99)
	}
	demand := spill.Demand{
		Memory: d.functionMemory(w), Speed: model.Speed(), Cores: w.size.CPU.Cores(), Wall: wall,
		Longest: max(longest, wall), Held: w.stage.Class, Device: w.size.GPU > 0 || w.size.DeviceClass != "",
	}
	class, why := demand.Class(d.functions)
	if measured.Class, measured.Refusal = class, string(why); why != "" {
		return
	}
	measured.Slower = demand.Slowdown(class)
	there := model.Times(fact.Function, size.ClassCores(class))
	took, _ := there.Mean()
	switch some := len(there.Values) > 0; {
	case some && len(atPool.Values) > 0:
		measured.Slower = took / wall
	case some:
		for _, value := range there.Values {
			measured.Walls = append(measured.Walls, value/measured.Slower)
		}
	}
}

// cheapest is the host whose slots of a size cost least, and how many of them it has room for.
func (d *decider) cheapest(slot quantity.Size) (best plan.Host, slots int) {
	least := math.Inf(1)
	for _, host := range d.hosts {
		room := roomOf(host.Capacity, slot)
		if each := host.PricePerHour.USD() / float64(room); room > 0 && host.PricePerHour > 0 && each < least {
			best, slots, least = host, room, each
		}
	}
	return best, slots
}

// Fit is how many slots of the stage a capacity has room for.
func (m Measured) Fit(capacity quantity.Size) int { return roomOf(capacity, m.Size) }

// roomOf is how many slots of a size a capacity has room for.
func roomOf(capacity, slot quantity.Size) int {
	room := math.MaxInt32
	for _, of := range [...][2]int64{
		{int64(capacity.CPU), int64(slot.CPU)},
		{int64(capacity.Memory), int64(slot.Memory)},
		{int64(capacity.GPU), int64(slot.GPU)},
	} {
		if of[1] > 0 {
			room = min(room, int(of[0]/of[1]))
		}
	}
	return room
}
