package engine_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// publishAs publishes an event with a token, and returns the status and the run.
func (e *testEngine) publishAs(token string, event web.Event) (status int, run string) {
	e.t.Helper()
	body, err := json.Marshal(event)
	if err != nil {
		e.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.address+"/api/v1/events",
		bytes.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		e.t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	var published web.Published
	if err != nil || answer.StatusCode == http.StatusOK && json.Unmarshal(text, &published) != nil {
		e.t.Fatalf("%v: %s", err, text)
	}
	return answer.StatusCode, published.Run
}

// TestTeamsOfAStackShareItAsTheirFileSays runs Maps of two teams on one stage, of which one may have one slot: its
// tasks never run two at a time, whoever polls, and each team pays its own.
func TestTeamsOfAStackShareItAsTheirFileSays(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "teams.yaml")
	if err := os.WriteFile(file, []byte("teams:\n  - {name: vision, pipelines: [fan], slots: 1}\n  - {name: text}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--teams-file", file, "--no-burst")
	tokens := map[string]string{}
	for _, team := range []string{"vision", "text"} {
		token, err := e.client.MakeToken(t.Context(), web.NewToken{Name: team, Role: "operator", Team: team})
		if err != nil {
			t.Fatal(err)
		}
		tokens[team] = token
	}
	input := json.RawMessage(`{"shards":8,"milliseconds":150}`)
	for _, foreign := range []web.Event{{Pipeline: "fan", Input: input}, {Subject: "events.fan", Input: input}} {
		if status, run := e.publishAs(tokens["text"], foreign); status != http.StatusForbidden {
			t.Fatalf("text starts %+v: got %d, run %q", foreign, status, run)
		}
	}
	runs := map[string]string{"": e.publish("fan-too", "", input)} // the owner's, which is the default team's
	for team, pipeline := range map[string]string{"vision": "fan", "text": "fan-too"} {
		status, run := e.publishAs(tokens[team], web.Event{Pipeline: pipeline, Input: input})
		if status != http.StatusOK {
			t.Fatalf("%s starts %s: got %d", team, pipeline, status)
		}
		runs[team] = run
	}
	owned := e.publish("fan", "", input) // the owner's too, of vision's own pipeline
	for team, run := range runs {
		if got := succeed[struct{ Shards, Wrong int }](e, run, patience); got.Shards != 8 || got.Wrong != 0 {
			t.Errorf("the run of %q returns %+v", team, got)
		}
		if view := e.wait(run, patience); view.Team != team {
			t.Errorf("run %s is of team %q, want %q", run, view.Team, team)
		}
	}
	if view := e.wait(owned, patience); view.Team != "vision" || view.State != predictor.RunSucceeded {
		t.Errorf("run %s is of team %q and %s", owned, view.Team, view.State)
	}
	e.oneAtATime(runs["vision"], owned)
	bill, err := e.client.Cost(t.Context(), ledger.BillQuery{By: ledger.ByTeam})
	if err != nil {
		t.Fatal(err)
	}
	tasks := map[string]int{}
	for _, line := range bill.Lines {
		tasks[line.Name] = line.Tasks
	}
	if tasks["vision"] != 16 || tasks["text"] != 8 || tasks["default"] != 8 {
		t.Errorf("the bill counts %v, want 16 tasks of vision and 8 of each other", tasks)
	}
	e.until("the metrics tell of teams", func() bool { return e.series()[`spillway_team_most_slots{team="vision"}`] == 1 })
	e.stop()
}

// TestAttackARetryIsNotOfTheTeamThatABuildNames tells, as a build can, that a run of the default team is vision's.
func TestAttackARetryIsNotOfTheTeamThatABuildNames(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	honest := e.wait(e.publish("echo", "", map[string]int{"index": 1}), patience)
	const run = "echo-named"
	kind, told, err := wire.EncodeEvent(predictor.RunStarted{ // the first word of a run counts
		Run: run, Pipeline: honest.Pipeline, App: honest.App, Build: honest.Build, Team: "vision", At: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.stream().Publish(t.Context(), wire.LoopSubject(kind), told); err != nil {
		t.Fatal(err)
	}
	e.publish("echo", "named", map[string]int{"index": 2})
	if view := e.wait(run, patience); view.Team != "vision" {
		t.Fatalf("the run is told of as of team %q, want that what a build says is told", view.Team)
	}
	again, err := e.client.Retry(t.Context(), run, web.Retry{})
	if err != nil {
		t.Fatal(err)
	}
	if view := e.wait(again.Run, patience); view.Team != "" {
		t.Errorf("the retry of a run of the default team is of team %q", view.Team)
	}
}

// oneAtATime looks at when the attempts of runs ran.
func (e *testEngine) oneAtATime(runs ...string) {
	e.t.Helper()
	var all []timeline.Attempt
	for _, run := range runs {
		attempts, err := e.client.Attempts(e.t.Context(), web.AttemptQuery{Run: run, Limit: 100})
		if err != nil {
			e.t.Fatal(err)
		}
		all = append(all, attempts...)
	}
	if len(all) != 16 {
		e.t.Errorf("%d attempts ran, want 16", len(all))
	}
	for i, one := range all {
		for _, other := range all[i+1:] {
			oneEnds, otherEnds := one.StartedAt.Add(one.Wall), other.StartedAt.Add(other.Wall)
			if one.StartedAt.Before(otherEnds) && other.StartedAt.Before(oneEnds) {
				e.t.Errorf("%+v and %+v ran at the same time", one, other)
			}
		}
	}
}
