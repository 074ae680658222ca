// Package plan has what a tick is asked, and what it answers.
package plan
