package runs

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// declarations remembers where each stage was declared, so that app.Main can name a stage that somebody forgot to list
// before its first task waits for ever. It is the one package-level state of the SDK: package variables cannot register
// elsewhere.
var declarations struct {
	sync.Mutex
	places map[string]string // file and line by stage name
}

// Declare remembers that the caller of its caller has declared a stage.
func Declare(name string) {
	_, file, line, _ := runtime.Caller(2)
	declarations.Lock()
	defer declarations.Unlock()
	if declarations.places == nil {
		declarations.places = map[string]string{}
	}
	declarations.places[name] = fmt.Sprintf("%s:%d", file, line)
}

// CheckListed returns an error that names every stage that was declared in this program and is missing from listed,
// and every name that is listed twice.
func CheckListed(listed []AnyStage) error {
	seen := map[string]bool{}
	for _, stage := range listed {
		if seen[stage.Name()] {
			return fmt.Errorf("stage %q is listed twice in app.Main: give one of them another name", stage.Name())
		}
		seen[stage.Name()] = true
	}
	declarations.Lock()
	defer declarations.Unlock()
	var missing []string
	for name, place := range declarations.places {
		if !seen[name] {
			missing = append(missing, fmt.Sprintf("stage %q (declared at %s) is not listed in app.Main: add it to Stages", name,
				place))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("%s", strings.Join(missing, "\n"))
}
