package web_test

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

func TestQuestionsAboutRunsAreAnsweredOrRefused(t *testing.T) {
	t.Parallel()
	const run = "/api/v1/runs/digits-1"
	for name, test := range map[string]struct {
		method, target, body string
		status               int
		contains             string
	}{
		"a timeline has lanes":       {"GET", run + "/timeline", "", 200, `"stage":"score"`},
		"too few marks are refused":  {"GET", run + "/timeline?marks=9", "", 400, "from 10 to 20000"},
		"too many marks are refused": {"GET", run + "/timeline?marks=20001", "", 400, "from 10 to 20000"},
		"marks that overflow are refused": {
			"GET", run + "/timeline?marks=99999999999999999999", "", 400,
			"from 10 to 20000",
		},
		"a timeline of an unknown run is not found": {
			"GET", "/api/v1/runs/digits-9/timeline", "", 404,
			"did you mean digits-1",
		},
		"attempts are listed": {"GET", run + "/attempts", "", 200, `"task":"score-0"`},
		"attempts that failed are listed": {
			"GET", run + "/attempts?outcome=failed", "", 200,
			`"task":"score-2"`,
		},
		"attempts that go on are listed": {
			"GET", run + "/attempts?outcome=running", "", 200,
			`"task":"score-3"`,
		},
		"an unknown outcome names the nearest": {
			"GET", run + "/attempts?outcome=succeed", "", 400,
			"did you mean succeeded?",
		},
		"an unknown stage names the nearest":        {"GET", run + "/attempts?stage=scor", "", 404, "did you mean score?"},
		"a negative offset is refused":              {"GET", run + "/attempts?offset=-1", "", 400, "from 0"},
		"an offset beyond the end is an empty list": {"GET", run + "/attempts?offset=100", "", 200, `{"attempts":[]}`},
		"an allocation has points":                  {"GET", run + "/allocation?points=10", "", 200, `"step_ns"`},
		"too many points are refused":               {"GET", run + "/allocation?points=2001", "", 400, "from 10 to 2000"},
		"a breakdown has its rows":                  {"GET", run + "/breakdown", "", 200, `"queue_ns"`},
		"arrivals are counted":                      {"GET", run + "/arrivals", "", 200, `"stage":"score","known_minutes":`},
		"arrivals of an unknown run are not found": {
			"GET", "/api/v1/runs/digits-9/arrivals", "", 404,
			"did you mean digits-1",
		},
		"curves have metrics":                        {"GET", run + "/curves", "", 200, `"metric":"loss"`},
		"a misspelt parameter names the nearest":     {"GET", run + "/timeline?mark=10", "", 400, "did you mean marks?"},
		"a parameter where there is none is refused": {"GET", run + "/breakdown?a=1", "", 400, "nothing to choose"},
		"a parameter that is given twice is refused": {"GET", run + "/timeline?marks=10&marks=20", "", 400, "2 times"},
		"two runs are compared": {
			"GET", "/api/v1/diff?a=digits-1&b=digits-2", "", 200,
			`"same_build":true`,
		},
		"a comparison with nothing is refused":      {"GET", "/api/v1/diff?a=digits-1", "", 400, "no b"},
		"a comparison with an unknown run names it": {"GET", "/api/v1/diff?a=digits-1&b=digits-3", "", 404, "digits-3"},
		"a bill is by stage":                        {"GET", "/api/v1/cost", "", 200, `"by":"stage"`},
		"a bill by something else is refused":       {"GET", "/api/v1/cost?by=venu", "", 400, "did you mean venue?"},
		"a bill of a time is made": {
			"GET",
			"/api/v1/cost?by=run&since=2026-11-20T09:00:00Z&until=2026-11-20T10:00:00Z", "", 200,
			`"since":"2026-11-20T09:00:00Z"`,
		},
		"a time that ends before it begins is refused": {"GET", "/api/v1/cost?since=1h&until=2h", "", 400, "is after until"},
		"a time that is none is refused": {
			"GET", "/api/v1/cost?since=tuesday", "", 400,
			"neither a time nor a duration",
		},
		"a time ahead is refused": {
			"GET", "/api/v1/cost?since=-1h", "", 400,
			"neither a time nor a duration",
		},
		"days are counted":                      {"GET", "/api/v1/cost?since=7d", "", 200, `"lines"`},
		"a bill of an unknown run is not found": {"GET", "/api/v1/cost?run=digits-7", "", 404, "did you mean"},
		"a bill of an unknown pipeline is not found": {
			"GET", "/api/v1/cost?pipeline=digist", "", 404,
			"did you mean digits?",
		},
		"a bill as a picture is refused":             {"GET", "/api/v1/cost?format=png", "", 400, "json, csv"},
		"prices have a day and a source":             {"GET", "/api/v1/prices", "", 200, `"dated"`},
		"alerts are listed":                          {"GET", "/api/v1/alerts", "", 200, `"kind":"deadline_at_risk"`},
		"an outlook without a goal is about its own": {"GET", run + "/outlook", "", 200, `"goal":{}`},
		"an outlook is about the goal that is given": {
			"GET", run + "/outlook?deadline_ns=5&minimise=cost", "", 200,
			`"goal":{"deadline_ns":5,"minimise":"cost"}`,
		},
		"an outlook with a negative goal is refused": {"GET", run + "/outlook?budget_picodollars=-1", "", 400, "from 0"},
		"an outlook with an odd aim is refused":      {"GET", run + "/outlook?minimise=fun", "", 400, "cost, latency"},
		"a goal is set": {
			"POST", run + "/goal", `{"deadline_ns":900000000000}`, 200,
			`"deadline_ns":900000000000`,
		},
		"a goal with an unknown field is refused": {"POST", run + "/goal", `{"deadline":"15m"}`, 400, "deadline"},
		"a negative goal is refused": {
			"POST", run + "/goal", `{"budget_picodollars":-1}`, 400,
			"is negative: give the dollars",
		},
		"a goal of a run that has ended is refused": {
			"POST", "/api/v1/runs/digits-2/goal", `{}`, 409,
			"succeeded already",
		},
		"a goal of an unknown run is refused": {"POST", "/api/v1/runs/none/goal", `{}`, 404, "none"},
		"a goal that is large is refused": {
			"POST", run + "/goal",
			`{"minimise":"` + strings.Repeat("x", 9<<20) + `"}`, 413, "8 MiB",
		},
		"a run that has ended is retried": {
			"POST", "/api/v1/runs/digits-2/retry", `{}`, 200,
			`"run":"digits-2-again"`,
		},
		"a retry from a stage reuses those before it": {
			"POST", "/api/v1/runs/digits-2/retry", `{"from":"score"}`, 200,
			`"stages":[]`,
		},
		"a retry from an unknown stage is refused": {
			"POST", "/api/v1/runs/digits-2/retry", `{"from":"scores"}`, 404,
			"did you mean score?",
		},
		"a retry of a run that goes on is refused":    {"POST", run + "/retry", `{}`, 409, "goes on"},
		"a retry of nothing in particular is refused": {"POST", run + "/retry", ``, 400, "it is empty"},
		"a version to come is not found":              {"GET", "/api/v2/runs", "", 404, "ask for /api/v1/runs"},
		"a version that was is gone":                  {"GET", "/api/v0/runs", "", 410, "the API is at /api/v1"},
		"a method that is not taken is refused":       {"PUT", run + "/goal", "", 405, "it takes POST"},
		"a path that only reads says so":              {"POST", "/api/v1/runs", "{}", 405, "it takes GET"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := newEngine(t)
			live(engine)
			status, answer := ask(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed}),
				test.method, test.target, test.body, nil)
			if status != test.status || !strings.Contains(answer, test.contains) {
				t.Errorf("%s %s: got %d %s, want %d and %q", test.method, test.target, status, answer, test.status, test.contains)
			}
		})
	}
}

func TestAGoalIsInForceOnceItIsSet(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	engine.OnOutlook = func(run string, goal predictor.Goal) predictor.Outlook {
		return predictor.Outlook{
			Run: run, Goal: goal, Known: true, Feasible: goal.Deadline != time.Second,
			Summary: "it cannot end in 1 s; 1 min is the least",
		}
	}
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
	if status, answer := ask(t, server, "POST", "/api/v1/runs/digits-1/goal", `{"deadline_ns":1000000000}`, nil); status !=
		422 || !strings.Contains(answer, "1 min is the least") {
		t.Errorf("an impossible goal: got %d %s, want 422 and why", status, answer)
	}
	if status, answer := ask(t, server, "POST", "/api/v1/runs/digits-1/goal", `{"deadline_ns":60000000000}`,
		nil); status != 200 {
		t.Errorf("a goal: got %d %s", status, answer)
	}
	if _, answer := ask(t, server, "GET", "/api/v1/runs/digits-1", "", nil); !strings.Contains(answer,
		`"goal":{"deadline_ns":60000000000}`) {
		t.Errorf("the run has another goal: %s", answer)
	}
	if _, answer := ask(t, server, "GET", "/api/v1/runs/digits-1/outlook", "", nil); !strings.Contains(answer,
		`"goal":{"deadline_ns":60000000000}`) {
		t.Errorf("the outlook is about another goal: %s", answer)
	}
}

func TestARetryWhoseArtifactsAreGoneSaysWhich(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	live(engine)
	engine.OnRetry = func(string, web.Retry) (web.Retried, error) {
		return web.Retried{}, &web.Error{
			Status: http.StatusGone, Message: "artifact 0123 of score is gone",
			Hint: "retry from score",
		}
	}
	status, answer := ask(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: engine}), "POST",
		"/api/v1/runs/digits-2/retry", `{}`, nil)
	if status != 410 || !strings.Contains(answer, "artifact 0123 of score is gone") ||
		!strings.Contains(answer, "retry from score") {
		t.Errorf("got %d %s, want 410 and what is gone", status, answer)
	}
}

func TestPagesOfAttemptsAreTheWholeList(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	live(engine)
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine})
	page := func(query string) (tasks []string) {
		var answer struct{ Attempts []timeline.Attempt }
		if status, text := ask(t, server, "GET", "/api/v1/runs/digits-1/attempts"+query, "", nil); status != 200 ||
			json.Unmarshal([]byte(text), &answer) != nil {
			t.Fatalf("got %d %s", status, text)
		}
		for _, attempt := range answer.Attempts {
			tasks = append(tasks, attempt.Task)
		}
		return tasks
	}
	all := page("")
	var pages []string
	for offset := range all {
		pages = append(pages, page("?limit=1&offset="+strconv.Itoa(offset))...)
	}
	if diff := cmp.Diff(all, pages); diff != "" || len(all) != 4 {
		t.Errorf("pages of %d attempts (-all +pages):\n%s", len(all), diff)
	}
}

func TestABillAsCSVHasTheSameNumbers(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	live(engine)
	stage := predictor.StageID{App: "digits", Build: "0123456789ab", Name: "score"}
	const formula = "=HYPERLINK(1)"
	engine.Apply(formula, predictor.RunStarted{
		Run: formula, Pipeline: formula, App: "digits", Build: stage.Build,
		At: begin,
	},
		predictor.Record{
			Run: formula, Pipeline: formula, Stage: stage, Task: "t", Attempt: 1, Outcome: predictor.Succeeded,
			Venue: predictor.Function, ScheduledAt: begin, Cost: 7, At: begin.Add(time.Second),
		})
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine})
	var bill ledger.Bill
	if _, text := ask(t, server, "GET", "/api/v1/cost?by=run", "", nil); json.Unmarshal([]byte(text), &bill) != nil {
		t.Fatal(text)
	}
	request := accesstest.Arrived(accesstest.Show(
		httptest.NewRequestWithContext(t.Context(), "GET", "/api/v1/cost?by=run&format=csv", nil)), 7474)
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, request)
	for header, want := range map[string]string{
		"Content-Type": "text/csv; charset=utf-8", "Content-Disposition": `attachment; filename="spillway-cost-by-run.csv"`,
		"X-Content-Type-Options": "nosniff",
	} {
		if got := recorder.Header().Get(header); got != want {
			t.Errorf("%s: got %q, want %q", header, got, want)
		}
	}
	rows, err := csv.NewReader(recorder.Body).ReadAll()
	if err != nil || len(rows) != len(bill.Lines)+1 || len(rows) < 3 {
		t.Fatalf("got %d rows, %v; want %d and the names", len(rows), err, len(bill.Lines))
	}
	var sum quantity.Money
	guarded := false
	for i, row := range rows[1:] {
		total, err := quantity.ParseDollars(row[8])
		if err != nil {
			t.Fatal(err)
		}
		sum += total
		guarded = guarded || row[0] == "'"+formula
		if name := strings.TrimPrefix(row[0], "'"); name != bill.Lines[i].Name {
			t.Errorf("line %d: got %q, want %q", i, name, bill.Lines[i].Name)
		}
	}
	if sum != bill.Total {
		t.Errorf("the totals sum to %s, want %s", sum, bill.Total)
	}
	if !guarded {
		t.Errorf("a spreadsheet would compute the name %s", formula)
	}
}

func TestWhatUsersWriteNeverBecomesAPage(t *testing.T) {
	t.Parallel()
	const script = "<script>alert(1)</script>&"
	engine := newEngine(t)
	live(engine)
	engine.Apply(script, predictor.RunStarted{Run: script, Pipeline: script, App: script, Build: "b", At: begin},
		predictor.RunEnded{Run: script, State: predictor.RunFailed, Error: script, At: begin.Add(time.Second)})
	line := printed("score", "score-1", 1, script)
	engine.Print(line)
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed, Page: web.NewPage()})
	for target, kind := range map[string]string{
		"/api/v1/runs": "application/json", "/api/v1/runs/%3Cscript%3E": "application/json",
		"/api/v1/cost?by=run":        "application/json",
		"/api/v1/runs/digits-1/logs": "text/event-stream", "/api/v1/cost?by=%3Cscript%3E": "application/json",
		"/api/v1/%3Cscript%3E":           "application/json",
		"/api/v1/runs/digits-1/attempts": "application/json", "/api/v1/runs/digits-2/result": "application/json",
		"/api/v3/%3Cscript%3E": "application/json", "/healthz?%3Cscript%3E": "application/json",
	} {
		request := accesstest.Arrived(accesstest.Show(httptest.NewRequestWithContext(t.Context(), "GET", target, nil)), 7474)
		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, request)
		if strings.ContainsAny(recorder.Body.String(), "<>") {
			t.Errorf("%s answers with what a browser could take for HTML: %s", target, recorder.Body)
		}
		for header, want := range map[string]string{
			"Content-Type": kind, "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer",
		} {
			if got := recorder.Header().Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", target, header, got, want)
			}
		}
	}
	for _, target := range []string{"/", "/runs/%3Cscript%3E", "/nothing"} {
		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, accesstest.Arrived(
			accesstest.Show(httptest.NewRequestWithContext(t.Context(), "GET", target, nil)), 7474))
		policy := recorder.Header().Get("Content-Security-Policy")
		for _, want := range []string{
			"default-src 'self'", "object-src 'none'", "base-uri 'none'",
			"frame-ancestors 'none'",
		} {
			if !strings.Contains(policy, want) || strings.Contains(policy, "unsafe") {
				t.Errorf("%s: the policy is %q, want %s in it and nothing unsafe", target, policy, want)
			}
		}
	}
}
