-- Say when the jobs at the heads of some lists were submitted.
-- KEYS 1.. lists
-- ARGV 1 prefix of job records
-- Returns for each list the time of submission (Unix seconds), '' if its head names no job that has a record.
local MAX_BYTES = 262144  -- longer messages are not opened here

local function submitted_at(list)
  if redis.call('TYPE', list).ok ~= 'list' then return '' end
  local message = redis.call('LINDEX', list, -1)
  if not message or #message > MAX_BYTES then return '' end
  local id = string.match(message, '"id": ?"([%w_.-]+)"')
  local at = id and redis.pcall('HGET', ARGV[1] .. id, 'submitted_at')  -- an error is a table
  return type(at) == 'string' and at or ''
end

local times = {}
for i, list in ipairs(KEYS) do times[i] = submitted_at(list) end
return times
