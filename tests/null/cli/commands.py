"""A command of nxcore, run in this process."""

from typer.testing import CliRunner, Result

from nxcore.cli import app


def command(*words: object, status: int = 0) -> Result:
    """Run a command, which must end with a status; what it raises is raised."""
    done = CliRunner().invoke(app, [*map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done
