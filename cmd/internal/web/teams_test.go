package web_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/teams"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
)

// teamServer serves runs of the teams vision and text, of which text is private, and of the default team, to tokens of
// each; it returns the headers that show these, by role and team.
func teamServer(t *testing.T) (server *web.Server, engine *webtest.Engine, shown map[string]http.Header) {
	t.Helper()
	engine = newEngine(t) // with digits-1, of the default team
	for _, team := range []string{"vision", "text"} {
		engine.Apply(team+"-1", predictor.RunStarted{
			Run: team + "-1", Pipeline: "digits", App: "digits", Build: "0123456789ab", Team: team, At: begin,
		})
	}
	file := filepath.Join(t.TempDir(), "teams.yaml")
	if err := os.WriteFile(file, []byte(`teams:
  - {name: vision, pipelines: [digits, "vision-*"], slots: 4, usd-per-day: 2.5, weight: 2}
  - {name: text, private: true}
  - {name: default}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	declared, err := teams.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	tokens := accesstest.Tokens(t)
	shown = map[string]http.Header{}
	for _, role := range access.Roles() {
		for _, team := range []string{"", "vision", "text"} {
			token, err := tokens.Make(t.Context(), role+"."+team+"x", role, team, time.Unix(1e9, 0))
			if err != nil {
				t.Fatal(err)
			}
			shown[role+" "+team] = http.Header{"Authorization": {"Bearer " + token}}
		}
	}
	return web.New(web.Options{
		Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed, Tokens: tokens, Teams: declared,
		Metrics: http.NotFoundHandler(),
	}), engine, shown
}

// TestATeamsOperatorChangesItsOwnAlone asks every route that an operator may ask: with a token of the team that owns
// the pipeline or the run, with one of another, of the default team, and of an admin without a team.
func TestATeamsOperatorChangesItsOwnAlone(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{
		"POST /api/v1/events":               `{"pipeline":"digits"}`,
		"POST /api/v1/bindings":             `{"pipeline":"digits","subject":"uploads.new"}`,
		"DELETE /api/v1/bindings?key=bound": "",
		"POST /api/v1/dead/replay":          `{"sequence":7}`,
		"POST /api/v1/chains":               `{"name":"vision-nightly","stages":[{"name":"score","script":"true"}]}`,
		"POST /api/v1/runs/vision-1/goal":   `{}`,
		"POST /api/v1/runs/vision-1/retry":  `{}`,
		"POST /api/v1/runs/vision-1/cancel": `{}`,
	}
	var listed []string
	for route := range bodies {
		listed = append(listed, strings.NewReplacer("vision-1", "{run}", "?key=bound", "").Replace(route))
	}
	for route, who := range web.Callers() {
		if who == access.Operator && !slices.Contains(listed, route) && route != "PUT /api/v1/artifacts" {
			t.Errorf("%s is not asked here: whose operators may ask it?", route) // an artifact is nobody's: its digest names it
		}
	}
	for route, body := range bodies {
		for who, allowed := range map[string]bool{
			"operator vision": true, "operator text": false, "operator ": false, "admin ": true, "viewer vision": false,
		} {
			server, engine, shown := teamServer(t)
			bound, err := engine.Bind(t.Context(), wire.Binding{Pipeline: "digits", Subject: "a"})
			if err != nil {
				t.Fatal(err)
			}
			engine.AddDead(web.DeadLetter{Sequence: 7, Pipeline: "digits"})
			method, target, _ := strings.Cut(strings.Replace(route, "key=bound", "key="+bound.Key, 1), " ")
			status, answer := ask(t, server, method, target, body, shown[who])
			if (status != http.StatusForbidden) != allowed {
				t.Errorf("%s by %s: got %d %s", route, who, status, answer)
			}
			if who == "operator text" && !strings.Contains(answer, "is of team vision, and the token of team text") {
				t.Errorf("%s by %s says %s", route, who, answer)
			}
		}
	}
}

// TestAttackABuildNamesWhoMaySteerItsRun asks operators to steer a run of which a build tells that it is another
// team's, and one of which nobody has told.
func TestAttackABuildNamesWhoMaySteerItsRun(t *testing.T) {
	t.Parallel()
	for _, steer := range []string{"goal", "retry", "cancel"} {
		for who, allowed := range map[string]bool{"operator vision": true, "operator text": false, "operator ": false} {
			for _, run := range []string{"text-1", "digits-1", "untold-1"} {
				server, engine, shown := teamServer(t)
				engine.Teams = map[string]string{run: "vision"}
				status, answer := ask(t, server, "POST", "/api/v1/runs/"+run+"/"+steer, `{}`, shown[who])
				if (status != http.StatusForbidden) != allowed || allowed && run == "text-1" && status == http.StatusNotFound {
					t.Errorf("%s of %s by %s: got %d %s", steer, run, who, status, answer)
				}
			}
		}
	}
}

// TestAttackABuildHidesARunFromItsOwnTeam looks at a run of vision of which a build tells that it is of text, which is
// private.
func TestAttackABuildHidesARunFromItsOwnTeam(t *testing.T) {
	t.Parallel()
	for who, want := range map[string]int{
		"viewer vision": http.StatusOK, "operator vision": http.StatusOK, "viewer ": http.StatusNotFound,
	} {
		server, engine, shown := teamServer(t)
		engine.Teams = map[string]string{"text-1": "vision"}
		if who == "viewer " { // and one that is text's own
			engine.Teams = nil
		}
		if status, answer := ask(t, server, "GET", "/api/v1/runs/text-1", "", shown[who]); status != want {
			t.Errorf("%s: got %d %s, want %d", who, status, answer, want)
		}
	}
}

// TestATokenIsOfATeamThatThereIs makes tokens of teams that are declared, and of one that is not.
func TestATokenIsOfATeamThatThereIs(t *testing.T) {
	t.Parallel()
	server, _, shown := teamServer(t)
	for team, want := range map[string]int{
		"vision": http.StatusOK, "": http.StatusOK, "visoin": http.StatusBadRequest,
	} {
		status, answer := ask(t, server, "POST", "/api/v1/tokens",
			`{"name":"new-`+team+`","role":"viewer","team":"`+team+`"}`, shown["admin "])
		if status != want {
			t.Errorf("team %q: got %d %s, want %d", team, status, answer, want)
		}
		if want != http.StatusOK && !strings.Contains(answer, "default, text, vision") {
			t.Errorf("team %q: %s does not say which there are", team, answer)
		}
	}
}

func TestAnUnownedPipelineIsStartedByEveryTeam(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"operator text", "operator vision", "operator "} {
		server, _, shown := teamServer(t)
		status, answer := ask(t, server, "POST", "/api/v1/chains",
			`{"name":"mine","stages":[{"name":"score","script":"true"}]}`, shown[who])
		if status == http.StatusForbidden {
			t.Errorf("%s: got %d %s", who, status, answer)
		}
	}
}

// TestRunsOfAPrivateTeamAreSeenByItAndAdminsAlone asks what is told of runs; those of others everybody sees.
func TestRunsOfAPrivateTeamAreSeenByItAndAdminsAlone(t *testing.T) {
	t.Parallel()
	server, engine, shown := teamServer(t)
	engine.Decide(predictor.Plan{Term: 1, Tick: 1, Decisions: []predictor.Decision{{
		ID: "1.1.1", Stage: predictor.StageID{App: "digits", Build: "0123456789ab", Name: "secret-stage", Team: "text"},
		At: begin,
	}}})
	for who, sees := range map[string]bool{
		"viewer text": true, "admin ": true, "viewer vision": false, "operator vision": false, "viewer ": false,
	} {
		_, list := ask(t, server, "GET", "/api/v1/runs", "", shown[who])
		if strings.Contains(list, "text-1") != sees || !strings.Contains(list, "vision-1") {
			t.Errorf("%s lists %s", who, list)
		}
		for _, target := range []string{
			"/api/v1/runs/text-1", "/api/v1/runs/text-1/decisions", "/api/v1/runs/text-1/timeline",
			"/api/v1/diff?a=digits-1&b=text-1", "/api/v1/cost?run=text-1&by=stage",
		} {
			if status, answer := ask(t, server, "GET", target, "", shown[who]); (status == http.StatusOK) != sees {
				t.Errorf("%s asks %s: got %d %s", who, target, status, answer)
			}
		}
		_, near := ask(t, server, "GET", "/api/v1/cost?run=text-2&by=stage", "", shown[who])
		if strings.Contains(near, "text-1") != sees {
			t.Errorf("%s asks for a run that is almost one of text: %s", who, near)
		}
		_, decisions := ask(t, server, "GET", "/api/v1/decisions", "", shown[who])
		if strings.Contains(decisions, "secret-stage") != sees {
			t.Errorf("%s lists the decisions %s", who, decisions)
		}
	}
}

func TestHowTeamsStandIsToldAsDeclaredAndByThePlan(t *testing.T) {
	t.Parallel()
	server, engine, shown := teamServer(t)
	engine.Decide(predictor.Plan{Term: 1, Tick: 1, At: begin, Teams: []predictor.TeamRow{
		{Team: predictor.Team{Name: "other"}, Waiting: 3},
		{Team: predictor.Team{Name: "vision", Slots: 2}, Held: 2, Waiting: 9, Why: "it has 2 slots of 2"},
	}})
	status, answer := ask(t, server, "GET", "/api/v1/teams", "", shown["viewer text"])
	for _, want := range []string{
		`"name":"vision","weight":2,"slots":4,"per_day_picodollars":2500000000000,"held":2`, `"why":"it has 2 slots of 2"`,
		`"name":"other"`, `"name":"text"`, `"private":true`, `"pipelines":["digits","vision-*"]`,
	} {
		if status != http.StatusOK || !strings.Contains(answer, want) {
			t.Errorf("got %d %s, want %s in it", status, answer, want)
		}
	}
}
