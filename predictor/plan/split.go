package plan

import "github.com/spillway-ml/spillway/predictor/fact"

// Split returns what the agent of each of these hosts obeys of the plan: the rows of the stages that are placed there,
// and what all are told. A thousand agents that each read the whole of it are a thousand times its size, for the few
// rows that each needs.
func (p Plan) Split(hosts []string) map[string]Plan {
	parts := make(map[string]Plan, len(hosts))
	for _, host := range hosts {
		parts[host] = Plan{Term: p.Term, Tick: p.Tick, At: p.At, TimesToLoss: p.TimesToLoss, Kinds: p.Kinds}
	}
	grants, sizings := map[fact.StageID]int{}, map[fact.StageID]int{}
	for i, grant := range p.Grants {
		if grant.Venue == fact.Pool {
			grants[grant.Stage] = i
		}
	}
	for i, sizing := range p.Sizings {
		sizings[sizing.Stage] = i
	}
	trainings := map[fact.StageID]int{}
	for i, past := range p.Trainings {
		trainings[past.Stage] = i
	}
	for i, placement := range p.Placements {
		part, wanted := parts[placement.Host]
		if !wanted {
			continue
		}
		seen := len(part.Placements) > 0 && part.Placements[len(part.Placements)-1].Stage == placement.Stage
		part.Placements = append(part.Placements, p.Placements[i])
		if at, has := grants[placement.Stage]; has && !seen {
			part.Grants = append(part.Grants, p.Grants[at])
		}
		if at, has := sizings[placement.Stage]; has && !seen {
			part.Sizings = append(part.Sizings, p.Sizings[at])
		}
		if at, has := trainings[placement.Stage]; has && !seen {
			part.Trainings = append(part.Trainings, p.Trainings[at])
		}
		parts[placement.Host] = part
	}
	return parts
}
