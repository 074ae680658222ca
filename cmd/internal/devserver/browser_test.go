package devserver

import (
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/cmd/internal/chromiumtest"
)

// TestABrowserThatIsLoggedInReadsTheUI opens Temporal's UI as a browser does that nobody knows, and with the cookie
// that the page's login sets: one reads nothing, the other the runs and their histories.
func TestABrowserThatIsLoggedInReadsTheUI(t *testing.T) {
	t.Parallel()
	tab := chromiumtest.NewTab(t, chromedp.WindowSize(1400, 1000))
	dir := t.TempDir()
	s := start(t, Options{Dir: dir})
	run, err := dialTemporal(t, s.TemporalAddress(), dir).
		ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "digits-17", TaskQueue: "nobody"}, "digits")
	if err != nil {
		t.Fatal(err)
	}

	runs := s.UIURL() + "/namespaces/default/workflows"
	tab.Open(runs)
	tab.Until(`document.body.innerText.includes('spillway open')`)
	if text := tab.Text(); strings.Contains(text, "digits-17") {
		t.Errorf("a browser that nobody knows reads:\n%s", text)
	}

	given := httptest.NewRecorder()
	s.Keys().SetSession(given, false)
	tab.LogIn(given.Result().Cookies()[0])
	tab.Open(runs)
	tab.Until(`document.querySelector('main a[href*="/digits-17/"]') !== null`)
	tab.Keep("temporal-runs")
	tab.Open(runs + "/digits-17/" + run.GetRunID() + "/history")
	tab.Until(`document.body.innerText.includes('Workflow Execution Started')`)
	tab.Keep("temporal-history")

	own, err := url.Parse(s.UIURL())
	if err != nil {
		t.Fatal(err)
	}
	if hosts := tab.Asked(); !slices.Equal(hosts, []string{own.Host}) {
		t.Errorf("the UI asks %v, want only %s", hosts, own.Host)
	}
}
