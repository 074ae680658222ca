package memory

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Experienced are models of stages with attempts that have ended, those that were active last first. They tell what
// stages take of which too few have.
type Experienced []*Model

// Experienced are those of the stages that are remembered.
func (m *State) Experienced() Experienced {
	found := Experienced{}
	for _, known := range m.models {
		if known.Experience().Attempts > 0 {
			found = append(found, known)
		}
	}
	slices.SortFunc(found, func(a, b *Model) int {
		return cmp.Or(cmp.Compare(b.Active, a.Active), strings.Compare(a.Name, b.Name))
	})
	return found[:min(len(found), maxAlike)]
}

// Prior is one that is corrected by what other stages tell of a quantity, those last that have most in common
// with this one. Those that the same program runs tell it for inputs as large as this one's, in bytes (0 for not
// known): as those that have ended had, or else those that wait.
func (e Experienced) Prior(
	st *Stage, weak size.Prior, input float64, of func(*Model) size.Experience,
) size.Prior {
	known, app := st.Model, st.ID.App
	log := of(known).Input
	if log == 0 && input > 0 {
		log = math.Log(input)
	}
	inputs := size.Inputs{}
	if log > 0 {
		inputs = e.inputs(known.Program, known, weak, of)
	}
	if log = inputs.Believed(log); log > 0 {
		weak.Input = math.Exp(log)
	}
	var others, kindred, program, reading, ofApp, both, some, same, named []size.Experience
	name := strings.TrimPrefix(known.Name, app)
	imported := func(module string) bool { return slices.Contains(known.Imports, module) }
	for _, other := range e {
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

// inputs is how what stages of this program take hangs together with their inputs.
func (e Experienced) inputs(program string, but *Model, weak size.Prior, of func(*Model) size.Experience) size.Inputs {
	var alike []size.Experience
	for _, other := range e {
		if other.Program == program && program != "" && other != but {
			alike = append(alike, of(other))
		}
	}
	return size.LearnInputs(weak, alike)
}

// listed names the first of some modules.
func listed(modules []string) string {
	const named = 3
	if more := len(modules) - named; more > 0 {
		return strings.Join(modules[:named], ", ") + " and " + words.Count(more, "other")
	}
	return strings.Join(modules, ", ")
}
