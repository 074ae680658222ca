// Package teams has what an operator declares of teams: which pipelines are whose, and what each team may have.
package teams

import (
	"path"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
)

// Team is one that was declared.
type Team struct {
	// Team is its name and what it may have.
	predictor.Team
	// Pipelines are patterns of names of those that are its own, as [path.Match] reads them: nobody of another team starts
	// them, and what an event starts of them is the team's.
	Pipelines []string
	// Private says that who is of another team, and no admin, does not see its runs.
	Private bool
}

// Teams are those that were declared. The zero value declares none: then there is the default team alone, which has all
// there is. It must not be changed.
type Teams []Team

// Owner is whose a pipeline is, by the first pattern that its name has; owned is false of one that is nobody's own,
// which every team starts.
func (t Teams) Owner(pipeline string) (team string, owned bool) {
	for _, one := range t {
		for _, pattern := range one.Pipelines {
			if is, _ := path.Match(pattern, pipeline); is { // patterns are checked when they are read
				return one.Name, true
			}
		}
	}
	return "", false
}

// Private reports whether the runs of a team are seen by its own people and admins alone.
func (t Teams) Private(team string) bool {
	for _, one := range t {
		if one.Name == team {
			return one.Private
		}
	}
	return false
}

// Declares reports whether somebody may be of a team: where any was declared, of those and of the default one alone.
func (t Teams) Declares(team string) bool {
	return len(t) == 0 || team == "" || slices.ContainsFunc(t, func(one Team) bool { return one.Name == team })
}

// Names are what those are called of which somebody may be, sorted, the default one among them.
func (t Teams) Names() []string {
	names := []string{predictor.DefaultTeam}
	for _, one := range t {
		names = append(names, predictor.TeamName(one.Name))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Bounds are what each team may have; nil where none was declared.
func (t Teams) Bounds() []predictor.Team {
	var bounds []predictor.Team
	for _, one := range t {
		bounds = append(bounds, one.Team)
	}
	return bounds
}
