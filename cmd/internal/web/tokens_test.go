package web_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

func TestEveryRouteHasTheLeastRoleThatFits(t *testing.T) {
	t.Parallel()
	for route, who := range web.Callers() {
		method, path, _ := strings.Cut(route, " ")
		switch {
		case path == "/healthz" || path == "/api/v1/session" || strings.HasPrefix(path, "/api/v1/session/") ||
			path == "/api/v1/hosts/join" || path == "/api/v1/servers/join":
			if who != access.Anyone {
				t.Errorf("%s: %v, want anyone", route, who)
			}
		case path == "/metrics":
			if who != access.Scraper {
				t.Errorf("%s: %v, want Prometheus", route, who)
			}
		case path == "/api/v1/tokens" || strings.HasPrefix(path, "/api/v1/tokens/") ||
			strings.HasPrefix(path, "/api/v1/hosts/") || path == "/api/v1/apps" ||
			path == "/api/v1/collections" || strings.HasPrefix(path, "/api/v1/sessions"):
			if who != access.Owner {
				t.Errorf("%s: %v, want the owner alone", route, who)
			}
		case method == http.MethodGet || path == "/api/v1/logins" || path == "/api/v1/pipelines/{pipeline}/frontier":
			if who != access.Viewer {
				t.Errorf("%s: %v, want viewers", route, who)
			}
		default:
			if who != access.Operator {
				t.Errorf("%s: %v, want operators", route, who)
			}
		}
	}
}
