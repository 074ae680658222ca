package display

import (
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// Servers names the servers of a stack in a line, with which of them leads and which one answers.
func Servers(servers []web.StackServer) string {
	texts := make([]string, len(servers))
	for i, one := range servers {
		text := one.Name
		var more []string
		if one.Address != "" {
			more = append(more, one.Address)
		}
		if one.Leads {
			more = append(more, "leads")
		} else {
			more = append(more, "stands by")
		}
		if one.Own {
			more = append(more, "answers here")
		}
		texts[i] = text + " (" + strings.Join(more, ", ") + ")"
	}
	return strings.Join(texts, "; ")
}
