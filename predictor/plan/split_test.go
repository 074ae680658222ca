package plan_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
)

func TestAHostIsToldOfItsOwnStagesAndOfWhatAllAreTold(t *testing.T) {
	t.Parallel()
	prep, train := fact.StageID{App: "a", Build: "1", Name: "prep"}, fact.StageID{App: "a", Build: "1", Name: "train"}
	all := plan.Plan{
		Term: 3, Tick: 7, At: time.Unix(100, 0),
		Grants: []plan.Grant{
			{Stage: prep, Venue: fact.Function, Slots: 9},
			{Stage: prep, Venue: fact.Pool, Slots: 3, PoolOnly: true},
			{Stage: train, Venue: fact.Pool, Slots: 1},
		},
		Placements: []plan.Placement{
			{Stage: prep, Host: "h1", Slots: 2},
			{Stage: prep, Host: "h2", Slots: 1},
			{Stage: train, Host: "h2", Slots: 1},
			{Stage: train, Host: "gone", Slots: 1},
		},
		Windows:     []plan.Window{{Run: "r", Stage: prep, Tasks: 5}},
		Sizings:     []size.Sizing{{Stage: prep, Attempts: 4}, {Stage: train, Attempts: 8}},
		Trainings:   []plan.PastTraining{{Stage: train}},
		TimesToLoss: []plan.TimeToLoss{{DeviceClass: "h100", Mean: time.Hour}},
		Kinds:       []plan.HostKind{{Memory: quantity.GiB}},
		Decisions:   []plan.Decision{{ID: "3.7.0"}},
	}
	told := plan.Plan{Term: 3, Tick: 7, At: all.At, TimesToLoss: all.TimesToLoss, Kinds: all.Kinds}
	first, second := told, told
	first.Grants, first.Placements, first.Sizings = all.Grants[1:2], all.Placements[:1], all.Sizings[:1]
	second.Grants, second.Placements, second.Sizings = all.Grants[1:3], all.Placements[1:3], all.Sizings
	second.Trainings = all.Trainings
	want := map[string]plan.Plan{"h1": first, "h2": second, "idle": told}
	if diff := cmp.Diff(want, all.Split([]string{"h1", "h2", "idle"})); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
}
