package predictor

import (
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/predictor/words"
)

// first is the static size: the declared one, else the first that the host's room and the input gave. The latter is
// kept with the model, so that falling back leads to the same size every time; a larger input before anything was
// learned makes it anew.
func (d *decider) first(st *memory.Stage) size.Sizing {
	known := st.Model
	capacity := d.hosts.LargestFor(st.Declared)
	if st.Declared != known.FirstDeclared || known.First.Base.IsZero() ||
		(known.Memory.Known() < usage.Enough && st.Input > known.FirstInput) {
		first := size.FirstSizing(st.ID, st.Declared, st.Input, d.hosts.FreestFor(st.Declared), capacity)
		first.Base.Memory = min(max(first.Base.Memory, d.policy.MinMemory), max(capacity.Memory, d.policy.MinMemory))
		first.Base.CPU = max(first.Base.CPU, size.LeastCPU)
		if capacity.IsZero() {
			return first // nothing to settle on: no host has joined yet
		}
		known.First, known.FirstInput, known.FirstDeclared = first, st.Input, st.Declared
	}
	return known.First
}

// guessed sizes a stage of which too few attempts have ended by what is alike: see [size.Prior]. What is thought is
// thought anew when an attempt of its own has ended, or runs that has grown beyond it; what others do meanwhile changes
// nothing. It is lowered where muchSpare of it is to spare: each of the first attempts tells a little more.
func (d *decider) guessed(st *memory.Stage, first size.Sizing) size.Sizing {
	held, known := st.Sizing, st.Model
	if len(d.hosts) == 0 {
		if held.Grows() { // what is thought holds, though nothing says how much there is to give
			first.Floor, first.Expected, first.Source = max(first.Floor, held.Floor), held.Expected, held.Source
		}
		return first
	}
	grown := quantity.Bytes(0)
	if held.Grows() && !st.Slot.IsZero() {
		if st.Live != nil && st.Live.Peak > guessAt(held, largestNeed(st, held)) {
			grown = st.Live.Peak
		}
		if grown == 0 && held.Attempts == known.Attempts {
			first.Base.Memory, first.Term, first.Floor = held.Base.Memory, held.Term, max(first.Floor, held.Floor)
			first.Expected, first.Source = held.Expected, held.Source
			return first
		}
	}
	largest := d.hosts.LargestFor(first.Base)
	s := first.Guessed(d.prior(st), known.Experience(),
		quantity.Bytes(known.Memory.Largest(usage.InputBytes)), grown, min(d.policy.MinMemory, largest.Memory))
	s.Base = s.Base.AtMost(largest)
	need := largestNeed(st, s)
	now, before := guessAt(s, need), guessAt(held, need)
	if held.Grows() && s.Term == held.Term && now < before && float64(now) > (1-muchSpare)*float64(before) {
		s.Base.Memory, s.Floor = held.Base.Memory, max(s.Floor, held.Floor)
	}
	return s
}

// guessAt is the memory of an attempt that needs so much.
func guessAt(s size.Sizing, need size.Need) quantity.Bytes {
	return max(s.Base.Memory+quantity.Bytes(s.Term.At(need.Values())), s.Floor)
}

// prior is what stages that have something in common with this one tell of its peaks.
func (d *decider) prior(st *memory.Stage) size.Prior {
	weak := size.WeakPrior(st.Model.Program, st.Model.Imports)
	return d.learnedOf(st, weak, float64(st.Input), (*memory.Model).Experience)
}

// usualWall is how many seconds a task of a stage of which no attempt has ended takes in the mean, by what others that
// have something in common with it took.
func (d *decider) usualWall(w *work) float64 {
	if seconds := w.usualWall; seconds > 0 {
		return seconds
	}
	prior := d.learnedOf(w.stage, size.WeakWall(), w.input(), (*memory.Model).WallExperience)
	w.usualWall = min(math.Exp(prior.Mean), fact.MaxWall.Seconds())
	return w.usualWall
}

// inputs is how what stages of this program take hangs together with their inputs.
func (d *decider) inputs(
	program string, but *memory.Model, weak size.Prior, of func(*memory.Model) size.Experience,
) size.Inputs {
	var alike []size.Experience
	for _, other := range d.experienced {
		if other.Program == program && program != "" && other != but {
			alike = append(alike, of(other))
		}
	}
	return size.LearnInputs(weak, alike)
}

// learnedOf is a prior that is corrected by what other stages tell of a quantity, those last that have most in common
// with this one. Those that the same program runs tell it for inputs as large as this one's, in bytes (0 for not known):
// as those that have ended had, or else those that wait.
func (d *decider) learnedOf(
	st *memory.Stage, weak size.Prior, input float64, of func(*memory.Model) size.Experience,
) size.Prior {
	if d.experienced == nil {
		d.experienced = d.memory.Experienced()
	}
	known, app := st.Model, st.ID.App
	log := of(known).Input
	if log == 0 && input > 0 {
		log = math.Log(input)
	}
	inputs := size.Inputs{}
	if log > 0 {
		inputs = d.inputs(known.Program, known, weak, of)
	}
	if log = inputs.Believed(log); log > 0 {
		weak.Input = math.Exp(log)
	}
	var others, kindred, program, reading, ofApp, both, some, same, named []size.Experience
	name := strings.TrimPrefix(known.Name, app)
	imported := func(module string) bool { return slices.Contains(known.Imports, module) }
	for _, other := range d.experienced {
		sameApp := strings.HasPrefix(other.Name, app+"/")
		sameProgram := other.Program != "" && other.Program == known.Program
		sameKind := other.Kind != "" && other.Kind == known.Kind
		set := of(other)
		if sameProgram {
			set = inputs.At(set, log)
		}
		switch {
		case other == known:
		case sameProgram && strings.HasSuffix(other.Name, name):
			named = append(named, set)
		case sameProgram && known.Imports != nil && slices.Equal(other.Imports, known.Imports) && other.Imports != nil:
			same = append(same, set)
		case slices.ContainsFunc(other.Imports, imported):
			some = append(some, set)
		case sameApp && sameProgram:
			both = append(both, set)
		case sameApp:
			ofApp = append(ofApp, set)
		case sameProgram && sameKind:
			reading = append(reading, set)
		case sameProgram:
			program = append(program, set)
		case sameKind:
			kindred = append(kindred, set)
		default:
			others = append(others, set)
		}
	}
	in, importing := "with "+known.Program, "that import no modules of others, either"
	if known.Program == fact.GoProgram {
		in = "in Go"
	}
	if len(known.Imports) > 0 {
		importing = "that import " + listed(known.Imports)
	}
	reads := "that read " + known.Kind
	return weak.Learn("elsewhere", others).Learn(reads, kindred).Learn(in, program).Learn(in+" "+reads, reading).
		Learn("of "+app, ofApp).Learn("of "+app+" "+in, both).
		Learn("that import some of the same modules", some).Learn(in+" "+importing, same).
		Learn(in+" called "+strings.TrimPrefix(name, "/"), named)
}

// listed names the first of some modules.
func listed(modules []string) string {
	const named = 3
	if more := len(modules) - named; more > 0 {
		return strings.Join(modules[:named], ", ") + " and " + words.Count(more, "other")
	}
	return strings.Join(modules, ", ")
}
