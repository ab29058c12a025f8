"""Tables, figures and a page from the records of benchmarks, and from nothing else.

write_report(["results.jsonl"], "report")  # all of it, into a folder
study = read_study("results.jsonl")  # the numbers
"""

from tacache_lab.report.confidence import Estimate
from tacache_lab.report.readme import fill, readme_table
from tacache_lab.report.studies import read_study, study, summarise
from tacache_lab.report.summary import Study, Summary
from tacache_lab.report.writing import write_report

__all__ = [
    "Estimate",
    "Study",
    "Summary",
    "fill",
    "read_study",
    "readme_table",
    "study",
    "summarise",
    "write_report",
]
