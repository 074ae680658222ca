package check_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/telemetry"
	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/deploy/check"
)

const (
	rulesDir      = "../prometheus"
	dashboardsDir = "../grafana"
)

// rule is a recording rule or an alert.
type rule struct {
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func rulesIn(t *testing.T, file string) []rule {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(rulesDir, file))
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(data, &document); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var all []rule
	for _, group := range document.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("%s has no rules", file)
	}
	return all
}

// catalogue is what Spillway has and what the recording rules make of it.
func catalogue(t *testing.T) check.Catalogue {
	t.Helper()
	all := check.NewCatalogue(telemetry.Series())
	for _, one := range rulesIn(t, "rules.yml") {
		labels, err := all.Labels(one.Expr)
		if err != nil {
			t.Errorf("rule %s: %v", one.Record, err)
		}
		all[one.Record] = labels
	}
	return all
}

var (
	labelInText   = regexp.MustCompile(`\{\{ *\$labels\.([A-Za-z_]+)`)
	labelInLegend = regexp.MustCompile(`\{\{ *([A-Za-z_]+) *\}\}`)
	labelValues   = regexp.MustCompile(`^label_values\((.+), *([A-Za-z_]+)\)$`)
	variable      = regexp.MustCompile(`\$\{?([a-z][a-zA-Z_]*)\}?`)
)

func TestRulesAndAlertsAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	all := catalogue(t)
	for _, one := range rulesIn(t, "alerts.yml") {
		labels, err := all.Labels(one.Expr)
		if err != nil {
			t.Errorf("alert %s: %v", one.Alert, err)
			continue
		}
		if !slices.Contains([]string{"page", "ticket", "info"}, one.Labels["severity"]) || one.Annotations["summary"] == "" ||
			one.Annotations["action"] == "" {
			t.Errorf("alert %s: needs a severity (page, ticket, info), a summary and an action", one.Alert)
		}
		for key, text := range one.Annotations {
			for _, match := range labelInText.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(labels, match[1]) {
					t.Errorf("alert %s: its %s shows the label %q, and it has %v", one.Alert, key, match[1], labels)
				}
			}
		}
	}
}

// dashboard is what matters here of Grafana's model.
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
			Datasource any    `json:"datasource"`
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID         int    `json:"id"`
		Type       string `json:"type"`
		Title      string `json:"title"`
		Datasource any    `json:"datasource"`
		GridPos    struct {
			X, Y, W, H int
		} `json:"gridPos"`
		FieldConfig struct {
			Defaults struct {
				Unit string `json:"unit"`
			} `json:"defaults"`
		} `json:"fieldConfig"`
		Targets []struct {
			Expr       string `json:"expr"`
			Legend     string `json:"legendFormat"`
			Datasource any    `json:"datasource"`
		} `json:"targets"`
	} `json:"panels"`
}

// dashboards reads all dashboards, by file.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dashboardsDir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	all := map[string]dashboard{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board dashboard
		if err := json.Unmarshal(data, &board); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[file] = board
	}
	return all
}

func TestDashboardsAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	all, uids := catalogue(t), map[string]string{}
	for file, board := range dashboards(t) {
		if other := uids[board.UID]; board.UID == "" || other != "" {
			t.Errorf("%s: its uid %q is empty or that of %s", file, board.UID, other)
		}
		uids[board.UID] = file
		checkDashboard(t, all, board)
	}
}

// checkDashboard checks the expressions, the labels in legends, the units, the data sources and that no two panels
// overlap.
func checkDashboard(t *testing.T, all check.Catalogue, board dashboard) {
	t.Helper()
	variables := map[string]bool{"__rate_interval": true, "__range": true}
	for _, one := range board.Templating.List {
		variables[one.Name] = true
		if one.Type == "datasource" {
			continue
		}
		match := labelValues.FindStringSubmatch(one.Definition)
		if match == nil {
			t.Errorf("%s: variable %s asks %q, want label_values(series, label)", board.Title, one.Name, one.Definition)
			continue
		}
		if labels, err := all.Labels(plain(match[1])); err != nil || !slices.Contains(labels, match[2]) {
			t.Errorf("%s: variable %s: %v; labels %v", board.Title, one.Name, err, labels)
		}
		checkSource(t, board.Title+", variable "+one.Name, one.Datasource)
	}
	if !variables["datasource"] {
		t.Errorf("%s: no variable for the data source", board.Title)
	}
	taken := map[[2]int]string{}
	for _, panel := range board.Panels {
		where := board.Title + ": " + panel.Title
		for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
			for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies over %q or beyond the edge", where, other)
				}
				taken[[2]int{x, y}] = panel.Title
			}
		}
		if panel.Type == "row" {
			continue
		}
		if panel.FieldConfig.Defaults.Unit == "" || panel.Title == "" || len(panel.Targets) == 0 {
			t.Errorf("%s: needs a title, a unit and a query", where)
		}
		checkSource(t, where, panel.Datasource)
		for _, target := range panel.Targets {
			checkSource(t, where, target.Datasource)
			for _, used := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if !variables[used[1]] {
					t.Errorf("%s: no variable %q", where, used[1])
				}
			}
			labels, err := all.Labels(plain(target.Expr))
			if err != nil {
				t.Errorf("%s: %v", where, err)
			}
			for _, match := range labelInLegend.FindAllStringSubmatch(target.Legend, -1) {
				if !slices.Contains(labels, match[1]) {
					t.Errorf("%s: its legend shows the label %q, and it has %v", where, match[1], labels)
				}
			}
		}
	}
}

// checkSource refuses a data source that only one installation has.
func checkSource(t *testing.T, where string, source any) {
	t.Helper()
	if fields, is := source.(map[string]any); !is || fields["uid"] != "${datasource}" {
		t.Errorf("%s: its data source is %v, want the variable's", where, source)
	}
}

// plain puts values in the place of variables.
func plain(expression string) string {
	return variable.ReplaceAllString(strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(expression),
		".*")
}

func TestWhatIsNotThereIsRefused(t *testing.T) {
	t.Parallel()
	all := catalogue(t)
	for _, expression := range []string{
		"spillway_attempt_total", `spillway_backlog_tasks{venue="pool"}`, "sum by (host) (spillway_slots)",
		"spillway_slots_bucket",
		"histogram_quantile(0.9, sum by (stage) (rate(spillway_attempt_run_seconds_bucket[5m])))",
		"histogram_quantile(0.9, sum by (stage, le) (rate(spillway_attempt_run_seconds[5m])))",
		"spillway_slots * on (host) spillway_backlog_tasks", "spillway_slots / spillway_backlog_tasks",
		"sum(spillway_leader", "stage:spillway_attempts:rate1m", "DCGM_FI_DEV_GPU_UTIL{host=\"a\"}",
	} {
		if labels, err := all.Labels(expression); err == nil {
			t.Errorf("%s is taken, with the labels %v", expression, labels)
		}
	}
}

func TestRulesDoWhatTheySay(t *testing.T) {
	t.Parallel()
	promtool := promtoolOrSkip(t)
	for _, arguments := range [][]string{
		{"check", "rules", "rules.yml", "alerts.yml"},
		{"test", "rules", "rules_test.yml"},
	} {
		command := exec.CommandContext(t.Context(), promtool, arguments...)
		command.Dir = rulesDir
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, output)
		}
	}
}

func TestTheConfigurationIsRead(t *testing.T) {
	t.Parallel()
	promtool := promtoolOrSkip(t)
	version, err := exec.CommandContext(t.Context(), promtool, "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("promtool --version: %v\n%s", err, version)
	}
	config, err := os.ReadFile(filepath.Join(rulesDir, "prometheus.yml"))
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`version (2\.|3\.[0-7]\.)`).Match(version) { // which have a flag instead
		config = regexp.MustCompile(`(?m)^ *scrape_native_histograms: true\n`).ReplaceAll(config, nil)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"prometheus.yml": config, "rules.yml": read(t, "rules.yml"),
		"alerts.yml": read(t, "alerts.yml"), "spillway-metrics-token": nil,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if output, err := exec.CommandContext(t.Context(), promtool, "check", "config", filepath.Join(dir, "prometheus.yml")).
		CombinedOutput(); err != nil {
		t.Errorf("promtool check config: %v\n%s", err, output)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(rulesDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func promtoolOrSkip(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err == nil {
		return path
	}
	if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "promtool") {
		t.Fatalf("promtool is required: %v", err)
	}
	t.Skip("promtool is not installed: the package prometheus of Debian and of Ubuntu has it")
	return ""
}
