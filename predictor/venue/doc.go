// Package venue says where a training whose workers exchange its model costs less: on hosts or in functions.
//
// Nothing in an engine asks it yet: its tests measure it.
package venue
