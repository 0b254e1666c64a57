-- Step affinity: which message of a list a claim takes next. Defines functions for claim.lua; reads no KEYS
-- or ARGV of its own.
-- A batch runs as long as its longest job, so jobs of like step counts should share one. A list gives its
-- head first. Then the claim looks at the next messages, WINDOW_FACTOR times as many as images are wanted,
-- and takes the longest job that makes the batch no longer, else the shortest; of equal ones the oldest.
-- As the head goes first, a job is passed over by at most as many batches as there are jobs before it.
local WINDOW_FACTOR = 4
local MAX_MESSAGES_READ = 512  -- messages that one claim reads in all: Redis serves nobody else meanwhile
local MAX_HEADER_VALUE = 1e6  -- anybody may write a header, and JSON cannot encode infinity

-- Return a number among the headers of a message, without decoding the message; nil if there is none.
local function header(message, name)
  local _, colon = string.find(message, '"' .. name .. '":', 1, true)
  local number = colon and tonumber(string.match(message, '^ ?(%d+)', colon + 1))
  return number and math.min(number, MAX_HEADER_VALUE)
end

local function steps_of(message, batch) return header(message, 'steps') or batch.default_steps end

-- Return the next messages of a list, the shortest job first; of equal ones the oldest last.
local function read_window(list, batch)
  local size = math.min(
    WINDOW_FACTOR * batch.wanted_images, math.ceil(MAX_MESSAGES_READ / batch.list_count))
  local window = {}
  for position, message in ipairs(redis.call('LRANGE', list, -size, -1)) do
    window[position] = {message = message, position = position, steps = steps_of(message, batch)}
  end
  table.sort(window, function(a, b)
    return a.steps < b.steps or (a.steps == b.steps and a.position < b.position)
  end)
  return window
end

-- Remove and return the longest job within `batch_steps`, or the shortest if all are longer.
local function remove_best_match(window, batch_steps)
  local at, limit = #window, math.max(batch_steps, window[1].steps)
  while window[at].steps > limit do at = at - 1 end
  return table.remove(window, at).message
end

-- Pop the next message of a list. `batch.windows` holds by list the messages that were read; a window is
-- read once a second message differs from the batch. A suspect in a window waits until it is the head:
-- claimed sooner, it would end the batch that others have a place in.
local function pop_message(list, batch)
  local window = batch.windows[list]
  if window and not window[1]
      and steps_of(redis.call('LINDEX', list, -1), batch) ~= batch.steps then
    window = read_window(list, batch)
  end
  batch.windows[list] = window or {}
  while window and window[1] do
    local message = remove_best_match(window, batch.steps)
    if not batch.is_suspect(message) then
      redis.call('LREM', list, -1, message)
      return message
    end
  end
  return redis.call('RPOP', list)
end
