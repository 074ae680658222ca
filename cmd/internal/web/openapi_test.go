package web_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// described is what the tests read of the document.
type described struct {
	Paths map[string]map[string]struct {
		OperationID string
		Parameters  []struct {
			Name, In string
			Required bool
			Schema   jsonschema.Schema
			Example  json.RawMessage
		}
		RequestBody struct {
			Content map[string]struct {
				Schema  jsonschema.Schema
				Example json.RawMessage
			}
		}
		Responses map[string]struct {
			Content map[string]struct {
				Schema   jsonschema.Schema
				Messages map[string]*jsonschema.Schema `json:"x-messages"`
			}
		}
	}
	Components struct {
		Schemas map[string]*jsonschema.Schema
	}
}

// served returns a server with all parts, its engine with two runs that have a history, and its document.
func served(t *testing.T) (*web.Server, *webtest.Engine, described, string) {
	t.Helper()
	engine := newEngine(t)
	live(engine)
	engine.SetListed(webtest.Listed{
		Hosts: []web.Host{{Name: "digits-1", State: web.HostUp}}, Token: "a", Renewed: "b",
		OnJoin: func(bearer string, _ web.Way, request join.Request) (join.Answer, error) {
			if bearer != accesstest.Keys().Token() {
				return join.Answer{}, &web.Error{Status: http.StatusUnauthorized, Message: "the token is not one to join with"}
			}
			return join.Answer{Host: request.Host}, nil
		},
		OnJoinServer: func(bearer string, _ web.Way, _ join.ServerRequest) (join.ServerAnswer, error) {
			if bearer != accesstest.Keys().Token() {
				return join.ServerAnswer{}, &web.Error{Status: http.StatusUnauthorized, Message: "the token is another one"}
			}
			return join.ServerAnswer{Secret: "a"}, nil
		},
	})
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tokens := accesstest.Tokens(t)
	server := web.New(web.Options{
		Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed, Artifacts: store, Tokens: tokens,
		Sessions: access.OpenSessions(documents.Local(), accesstest.Keys(), tokens),
		Metrics:  http.NotFoundHandler(), Codec: http.HandlerFunc(echoes),
	})
	status, text := ask(t, server, "GET", "/api/v1/openapi.json", "", nil)
	if status != http.StatusOK {
		t.Fatalf("got %d %s", status, text)
	}
	// What refers to a part of the document refers, in a schema that stands alone, to one of its own definitions.
	text = strings.ReplaceAll(text, "#/components/schemas/", "#/$defs/")
	var document described
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	return server, engine, document, text
}

// echoes answers with what it is sent, which is payloads.
func echoes(w http.ResponseWriter, r *http.Request) {
	var sent json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(sent) // who asked looks at it
}

// live gives the run digits-1 attempts of every kind, progress and an alert, and ends a second run.
func live(engine *webtest.Engine) {
	engine.Clock = func() time.Time { return begin.Add(time.Minute) }
	stage := predictor.StageID{App: "digits", Build: "0123456789ab", Name: "score"}
	size := quantity.Size{CPU: 500, Memory: 64 << 20}
	engine.Apply("", predictor.HostHeld{
		Host: "h", Capacity: quantity.Size{CPU: 4000, Memory: 8 << 30}, PricePerHour: 1e11,
		From: begin, At: begin.Add(time.Minute),
	})
	engine.Apply("digits-2", predictor.RunStarted{
		Run: "digits-2", Pipeline: "digits", App: "digits", Build: stage.Build,
		At: begin,
	})
	for run := range 2 {
		name := fmt.Sprintf("digits-%d", run+1)
		engine.Apply(name, predictor.Scheduled{Run: name, Stage: stage, Tasks: 4, At: begin})
		for i, outcome := range []predictor.Outcome{predictor.Succeeded, predictor.OutOfMemory, predictor.Failed, ""} {
			task, started := fmt.Sprintf("score-%d", i), begin.Add(time.Duration(i+1)*time.Second)
			engine.Apply(name, predictor.AttemptStarted{
				Run: name, Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool,
				Host: "h", Queue: time.Second, Grant: size, At: started,
			},
				predictor.Sampled{
					Run: name, Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, Host: "h", CPU: 400,
					Memory: 1 << 20, Grant: size, Step: 1, Metrics: map[string]float64{"loss": 0.5}, At: started.Add(time.Second),
				})
			if outcome != "" {
				engine.Apply(name, predictor.Record{
					Run: name, Pipeline: "digits", Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, Host: "h",
					Outcome: outcome, Error: "<b>why</b>",
					ScheduledAt: begin, Queue: time.Second, Start: time.Millisecond, Grant: size, Cost: 1e9,
					At:    started.Add(3 * time.Second),
					Usage: quantity.Usage{Wall: 2 * time.Second, CPU: time.Second, PeakMemory: 1 << 20},
				})
			}
		}
	}
	engine.Apply("digits-2", predictor.RunEnded{
		Run: "digits-2", State: predictor.RunSucceeded,
		Result: []byte(`{"a":"<b>"}`), At: begin.Add(30 * time.Second),
	})
	engine.Alert(alerting.Alert{
		ID: "a", Run: "digits-1", Pipeline: "digits", Kind: alerting.KindDeadlineAtRisk, At: begin,
		Message: "late",
	})
	engine.Decide(predictor.Plan{
		Term: 1, Tick: 1, At: begin,
		Decisions: []predictor.Decision{{
			ID: "d", Stage: stage, Venue: predictor.Pool, What: "slots",
			At: begin.Add(time.Second),
		}},
	})
	engine.AddDead(web.DeadLetter{Sequence: 4, Event: "e", Subject: "s", Reason: "r", At: begin})
}

func TestTheDocumentIsTheCommittedOne(t *testing.T) {
	t.Parallel()
	_, _, _, text := served(t)
	text = strings.ReplaceAll(text, "#/$defs/", "#/components/schemas/")
	var indented any
	if err := json.Unmarshal([]byte(text), &indented); err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(indented, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if os.Getenv("SPILLWAY_UPDATE") == "1" {
		if err := os.WriteFile("openapi.json", got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("openapi.json is not what the server answers; SPILLWAY_UPDATE=1 writes it anew (-file +server):\n%s", diff)
	}
}

var patterns = regexp.MustCompile(`(?:asking\(s, "(\w+)", "(/[^"]*)"|method: "(\w+)", path: "(/[^"]*)")`)

func TestEveryRouteOfTheTableIsDescribedAndAnswers(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("routes.go")
	if err != nil {
		t.Fatal(err)
	}
	_, _, document, _ := served(t)
	var want, got []string
	for _, found := range patterns.FindAllStringSubmatch(string(source), -1) {
		want = append(want, strings.TrimSpace(found[1]+found[3])+" "+found[2]+found[4])
	}
	names := map[string]bool{}
	for path, operations := range document.Paths {
		for method, operation := range operations {
			got = append(got, strings.ToUpper(method)+" "+path)
			if names[operation.OperationID] {
				t.Errorf("two operations are called %s", operation.OperationID)
			}
			names[operation.OperationID] = true
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("routes (-source +document):\n%s", diff)
	}
}

// check validates JSON against a schema that may refer to the document's.
func (d described) check(t *testing.T, what string, schema *jsonschema.Schema, text []byte) {
	t.Helper()
	alone := schema.CloneSchemas()
	alone.Defs = map[string]*jsonschema.Schema{}
	d.define(t, alone, alone.Defs)
	resolved, err := alone.Resolve(nil)
	if err != nil {
		t.Errorf("%s: the schema does not resolve: %v", what, err)
		return
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Errorf("%s: %v in %s", what, err, text)
		return
	}
	if err := resolved.Validate(value); err != nil {
		t.Errorf("%s: %v\n%s", what, err, text)
	}
}

var referred = regexp.MustCompile(`"#/\$defs/([^"]+)"`)

// define adds the schemas that schema refers to, and those that these refer to.
func (d described) define(t *testing.T, schema *jsonschema.Schema, defined map[string]*jsonschema.Schema) {
	t.Helper()
	text, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range referred.FindAllSubmatch(text, -1) {
		name := string(found[1])
		part, described := d.Components.Schemas[name]
		if !described {
			t.Fatalf("the document refers to %s and does not describe it", name)
		}
		if defined[name] == nil {
			defined[name] = part
			d.define(t, part, defined)
		}
	}
}

var named = regexp.MustCompile(`\{\w+\}`)

func TestEveryAnswerIsAsDescribed(t *testing.T) {
	t.Parallel()
	server, _, document, _ := served(t)
	for path, operations := range document.Paths {
		operation, found := operations["get"]
		answer, isJSON := operation.Responses["200"].Content["application/json"]
		if !found || !isJSON {
			continue
		}
		query := url.Values{}
		for _, parameter := range operation.Parameters {
			if parameter.Required && parameter.In == "query" {
				asked := "digits-1"
				if parameter.Name == "stage" {
					asked = "digits/score"
				}
				query.Set(parameter.Name, asked)
			}
		}
		for _, run := range []string{"digits-1", "digits-2"} {
			if run == "digits-1" && strings.HasSuffix(path, "/result") {
				continue // it goes on
			}
			target := named.ReplaceAllString(strings.ReplaceAll(path, "{pipeline}", "digits"), run) + "?" + query.Encode()
			status, text := ask(t, server, "GET", target, "", nil)
			if status != http.StatusOK {
				t.Errorf("GET %s: got %d %s", target, status, text)
				continue
			}
			document.check(t, target, &answer.Schema, []byte(text))
		}
	}
}

func TestEveryRefusalIsAsDescribed(t *testing.T) {
	t.Parallel()
	server, _, document, _ := served(t)
	refusal := &jsonschema.Schema{
		Type: "object", Required: []string{"error"},
		Properties: map[string]*jsonschema.Schema{"error": {Ref: "#/$defs/web.Error"}},
	}
	for _, target := range []string{
		"GET /api/v1/runs/none", "GET /api/v1/cost?by=x", "POST /api/v1/runs/digits-2/goal",
		"PUT /api/v1/runs", "GET /api/v0/runs",
	} {
		method, path, _ := strings.Cut(target, " ")
		status, text := ask(t, server, method, path, "{}", nil)
		if status < 400 {
			t.Errorf("%s: got %d %s, want a refusal", target, status, text)
		}
		document.check(t, target, refusal, []byte(text))
	}
}

func TestEveryExampleIsAccepted(t *testing.T) {
	t.Parallel()
	server, _, document, _ := served(t)
	examples := 0
	for path, operations := range document.Paths {
		for method, operation := range operations {
			target := strings.ToUpper(method) + " " + path
			for _, parameter := range operation.Parameters {
				if parameter.In != "query" {
					continue
				}
				examples++
				document.check(t, target+"?"+parameter.Name, &parameter.Schema, parameter.Example)
			}
			body, taken := operation.RequestBody.Content["application/json"]
			if !taken {
				continue
			}
			examples++
			document.check(t, target, &body.Schema, body.Example)
			name := "digits-1"
			switch {
			case strings.HasSuffix(path, "/retry"):
				name = "digits-2"
			case strings.Contains(path, "{pipeline}"):
				name = "digits"
			}
			address := named.ReplaceAllString(path, name)
			status, text := ask(t, server, strings.ToUpper(method), address, string(body.Example), nil)
			missing := strings.HasSuffix(path, "/apps") && status == http.StatusNotFound
			used := strings.HasSuffix(path, "/session") && status == http.StatusUnauthorized
			nowhere := strings.HasPrefix(path, "/api/v1/session/") && status == http.StatusNotFound // to sign in
			if status != http.StatusOK && !missing && !used && !nowhere {
				t.Errorf("%s with its example %s: got %d %s", target, body.Example, status, text)
			}
			if _, described := operation.Responses[strconv.Itoa(status)]; !described {
				t.Errorf("%s: the answer %d is not described", target, status)
			}
		}
	}
	if examples < 20 {
		t.Errorf("got %d examples, want those of all parameters and bodies", examples)
	}
}

func TestTheMessagesOfAStreamAreAsDescribed(t *testing.T) {
	t.Parallel()
	server, engine, document, _ := served(t)
	content := document.Paths["/api/v1/stream"]["get"].Responses["200"].Content["text/event-stream"]
	stream := openStream(t, server, "?run=digits-1")
	seen := map[string]bool{}
	for len(seen) < len(content.Messages) {
		message := stream.next(t)
		if message.name == "" {
			continue
		}
		schema, described := content.Messages[message.name]
		if !described {
			t.Fatalf("message %s is not described: there are %v", message.name, slices.Sorted(maps.Keys(content.Messages)))
		}
		document.check(t, message.name, schema, []byte(message.data))
		seen[message.name] = true
	}
	engine.Apply("digits-1", predictor.RunEnded{Run: "digits-1", State: predictor.RunFailed, At: begin.Add(time.Hour)})
	if message := stream.next(t); message.name != web.StreamRun {
		if message = stream.next(t); message.name != web.StreamRun {
			t.Errorf("got %s, want the end of the run", message.name)
		}
	}
}
